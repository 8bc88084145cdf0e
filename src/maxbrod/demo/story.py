"""The story of the demo: topics are filled, read, backed up, lost, restored and compared, and a group reads on."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from maxbrod.archive.archive import Archive, open_archive
from maxbrod.backup.report import BackupReport
from maxbrod.backup.run import backup
from maxbrod.catalog.rows import Segment, decode_rows
from maxbrod.compare.report import CompareReport
from maxbrod.compare.run import compare
from maxbrod.config import Config, SparkConfig
from maxbrod.layouts.kafka.reader import read_log
from maxbrod.model import Codec
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.restore.run import Restore
from maxbrod.sandbox import events
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.events import TopicInventory, broker_logs, produce_records, take_inventory
from maxbrod.sandbox.jars import KAFKA_VERSION, kafka_release
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.sandbox.traffic import Message, produce_transaction, read_as_group
from maxbrod.work.session import Session, open_configured
from maxbrod.work.work import Work

Step: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Shows a step of the story while it lasts."""
PARTITIONS: Final = {"orders": 4, "clicks": 2, "customers": 1, "payments": 1}
GROUP: Final = "billing"
GROUP_TOPICS: Final = ("customers", "payments")
_TRANSACTIONS: Final = 8
_TRANSACTION_RECORDS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """A topic in the archive, beside the counts of producers and brokers."""

    inventory: TopicInventory
    acknowledged: int
    stored_bytes: int
    identical: bool
    """True if every byte of every partition equals the broker's log."""

    @property
    def complete(self) -> bool:
        return self.identical and self.inventory.records == self.acknowledged

    def as_dict(self) -> dict[str, object]:
        mine = {name: getattr(self, name) for name in ("acknowledged", "stored_bytes", "identical")}
        return {**asdict(self.inventory), **mine}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The records that a group read of a topic before its loss, and after its restore."""

    topic: str
    before: int
    after: int
    stood_at: int
    """The offset after the last record that the group had read."""
    went_on_at: int
    acknowledged: int

    @property
    def exact(self) -> bool:
        """True if the group read every record once, from the next record on."""
        return self.went_on_at >= self.stood_at and self.before + self.after == self.acknowledged


class GroupReading(Protocol):
    """What a group read of a topic, before and after the loss."""

    @property
    def topic(self) -> str: ...

    @property
    def exact(self) -> bool:
        """True if the group read every record once."""
        ...


Reading = TypeVar("Reading", bound=GroupReading)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings(Generic[Reading]):
    """The findings of the whole demo."""

    archived: list[Archived]
    run: BackupReport
    compared: CompareReport
    resumed: Sequence[Reading]

    def restored(self, topic: str) -> int:
        """The number of restored records that are equal at their offsets; -1 if one differs."""
        mine = [partition for partition in self.compared.partitions if partition.source_topic == topic]
        return (
            sum(compared.target_records for compared in mine)
            if mine and all(comparison.equal for comparison in mine)
            else -1
        )

    @property
    def lacking(self) -> list[str]:
        """Topics with a record that is missing, differs, or was read twice or never."""
        lost = [
            topic.inventory.topic
            for topic in self.archived
            if not topic.complete or self.restored(topic.inventory.topic) != topic.acknowledged
        ]
        return [*lost, *(group.topic for group in self.resumed if not group.exact and group.topic not in lost)]

    @property
    def complete(self) -> bool:
        return self.run.complete and self.compared.equal and not self.lacking


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The cluster and its archive when something is about to be lost."""

    cluster: Cluster
    session: Session
    archive: Path
    acknowledged: Mapping[str, int]
    before: Mapping[str, list[int]]
    """The offsets that the group has read, by topic."""
    run: BackupReport
    archived: list[Archived]


@contextmanager
def begin(step: Step, folder: Path, records: int, brokers: int) -> Iterator[Beginning]:
    """Start a cluster, fill it, let a group read a part of it, and back it up. It runs until the block ends."""
    with step(f"get Kafka {KAFKA_VERSION} (the first time it is downloaded)"):
        kafka_release()
    with step(f"start {brokers} broker{'s'[: brokers > 1]}"):
        cluster = Cluster.start(folder / "cluster", brokers=brokers)
    archive = folder / "archive"
    with cluster, ExitStack() as undo:
        with step("produce"):
            acknowledged = fill(cluster, records)
        with step(f"a consumer group, {GROUP}, reads a part of it"):
            before = read_as_group(cluster, GROUP, {topic: acknowledged[topic] // 2 for topic in GROUP_TOPICS})
        with step("start Spark"):
            session = undo.enter_context(open_configured(SparkConfig()))
        with step("back up"):
            run = backup(bootstrap=cluster.bootstrap, archive=archive, session=session)
        with step("read the archive, and the brokers' own logs"):
            archived = look(cluster, archive, acknowledged)
        yield Beginning(
            cluster=cluster,
            session=session,
            archive=archive,
            acknowledged=acknowledged,
            before=before,
            run=run,
            archived=archived,
        )


def tell(step: Step, records: int, brokers: int) -> Findings[Resumed]:
    """Play the whole story in a temporary folder, which is removed at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="maxbrod-demo-") as folder,
        begin(step, Path(folder), records, brokers) as begun,
    ):
        cluster, archive, session = begun.cluster, begun.archive, begun.session
        with step("lose every topic, and with them what the group had read"):
            for topic in PARTITIONS:
                delete_topic(cluster, topic)
        with step("restore topics and group from the archive"):
            restore(cluster, archive, session, groups=(GROUP,))
        with step("compare every record with the archive"):
            compared = compare(bootstrap=cluster.bootstrap, archive=archive, session=session)
        with step(f"{GROUP} reads on"):
            resumed = read_on(cluster, begun.before, begun.acknowledged)
    return Findings(archived=begun.archived, run=begun.run, compared=compared, resumed=resumed)


def fill(cluster: Cluster, records: int) -> dict[str, int]:
    """Fill the topics; returns the number of committed records that the brokers acknowledged, by topic."""
    for topic, partitions in PARTITIONS.items():
        policy = "compact" if topic == "customers" else "delete"
        create_topic(cluster, topic, partitions=partitions, config={"cleanup.policy": policy})
    # Timestamps up to now, because a broker soon deletes records older than its retention.
    first_ms = int(time.time() * 1000) - records * events.INTERVAL_MS
    made = {
        "orders": (events.orders(records * 6 // 10, first_timestamp_ms=first_ms), Codec.LZ4),
        "clicks": (events.clicks(records * 3 // 10, first_timestamp_ms=first_ms), Codec.ZSTD),
        "customers": (events.customers(records // 10, first_timestamp_ms=first_ms), Codec.NONE),
    }
    acknowledged = {
        topic: sum(
            produce_records(cluster, topic, part, partition=partition, codec=codec)
            for partition, part in enumerate(events.split(columns, PARTITIONS[topic]))
        )
        for topic, (columns, codec) in made.items()
    }
    return {**acknowledged, "payments": _pay(cluster)}


def _pay(cluster: Cluster) -> int:
    """Produce transactions and abort every fourth; returns the number of committed records."""
    committed = 0
    for number in range(_TRANSACTIONS):
        commit = number % 4 != 3
        payments = [
            Message(key=b"account-%d" % (row % 7), value=b'{"transfer":%d,"cents":%d}' % (number, row * 100))
            for row in range(_TRANSACTION_RECORDS)
        ]
        produce_transaction(cluster, "payments", payments, transactional_id="demo", commit=commit)
        committed += len(payments) * commit
    return committed


def read_on(cluster: Cluster, before: Mapping[str, list[int]], acknowledged: Mapping[str, int]) -> list[Resumed]:
    """The same group reads the restored topics to their ends, from its committed offsets on."""
    after = read_as_group(cluster, GROUP, dict.fromkeys(GROUP_TOPICS))
    return [
        Resumed(
            topic=topic,
            before=len(before[topic]),
            after=len(after[topic]),
            stood_at=before[topic][-1] + 1,
            went_on_at=min(after[topic], default=-1),
            acknowledged=acknowledged[topic],
        )
        for topic in GROUP_TOPICS
    ]


def look(cluster: Cluster, archive: Path, acknowledged: Mapping[str, int]) -> list[Archived]:
    """The content of the archive, beside the brokers' own logs."""
    opened = open_archive(str(archive))
    found = []
    for topic, partitions in PARTITIONS.items():
        stored_bytes, logs = _archived_logs(opened, topic, partitions)
        found.append(
            Archived(
                inventory=take_inventory(topic, logs),
                acknowledged=acknowledged[topic],
                stored_bytes=stored_bytes,
                identical=logs == broker_logs(cluster, topic, partitions=partitions),
            )
        )
    return found


def _archived_logs(archive: Archive, topic: str, partitions: int) -> tuple[int, list[bytes]]:
    """The stored size of a topic, and the log of each partition."""
    rows = [row for row in decode_rows(archive.catalog.rows(topic=topic)) if isinstance(row, Segment)]
    logs = [
        b"".join(read_log(archive.storage, row).tobytes() for row in rows if row.partition == number)
        for number in range(partitions)
    ]
    return sum(row.bytes for row in rows), logs


def restore(cluster: Cluster, archive: Path, session: Session, groups: tuple[str, ...] = ()) -> None:
    """Restore every topic at its own offsets, and the offsets of these groups."""
    config = Config.model_validate({"archive": str(archive), "kafka": {"bootstrap": cluster.bootstrap}})
    with Restore(Work(config, session=session), RestoreRequest(offsets=OffsetsMode.EXACT, groups=groups)) as work:
        work.run(work.plan())

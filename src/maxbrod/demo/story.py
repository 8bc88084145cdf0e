"""The steps of the demo between its first record and its verdict: topics are filled, read, lost and inspected."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from maxbrod.archive.archive import Archive
    from maxbrod.compare.report import CompareReport
    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.records import TopicInventory
    from maxbrod.work.session import Session

PARTITIONS: Final = {"orders": 4, "clicks": 2, "customers": 1, "payments": 1}
GROUP: Final = "billing"
_GROUP_TOPICS: Final = ("customers", "payments")
_TRANSACTIONS: Final = 8
_TRANSACTION_RECORDS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """A topic in the archive, beside the counts of producers and brokers."""

    inventory: TopicInventory
    acknowledged: int
    stored_bytes: int
    identical: bool
    """Whether every byte of every partition equals the broker's log."""

    @property
    def complete(self) -> bool:
        return self.identical and self.inventory.records == self.acknowledged

    def as_dict(self) -> dict[str, object]:
        mine = {name: getattr(self, name) for name in ("acknowledged", "stored_bytes", "identical")}
        return {**asdict(self.inventory), **mine}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What a group read of a topic before its loss, and after its restore."""

    topic: str
    before: int
    after: int
    stood_at: int
    """The offset after the last record that the group had read."""
    went_on_at: int
    acknowledged: int

    @property
    def exact(self) -> bool:
        """Whether the group read every record once, from the next record on."""
        return self.went_on_at >= self.stood_at and self.before + self.after == self.acknowledged


def fill(cluster: Cluster, records: int) -> dict[str, int]:
    """Fill the topics; returns the number of committed records that the brokers acknowledged, by topic."""
    from maxbrod.model import Codec  # noqa: PLC0415
    from maxbrod.sandbox import events  # noqa: PLC0415
    from maxbrod.sandbox.records import produce_records  # noqa: PLC0415
    from maxbrod.sandbox.topics import create_topic  # noqa: PLC0415

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
    from maxbrod.sandbox.traffic import Message, produce_transaction  # noqa: PLC0415

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


def read_a_part(cluster: Cluster, acknowledged: Mapping[str, int]) -> dict[str, list[int]]:
    """A group reads about half of its topics; returns the offsets read by topic."""
    from maxbrod.sandbox.traffic import read_as_group  # noqa: PLC0415

    return read_as_group(cluster, GROUP, {topic: acknowledged[topic] // 2 for topic in _GROUP_TOPICS})


def read_on(cluster: Cluster, before: Mapping[str, list[int]], acknowledged: Mapping[str, int]) -> list[Resumed]:
    """The same group reads the restored topics to their ends, from its committed offsets on."""
    from maxbrod.sandbox.traffic import read_as_group  # noqa: PLC0415

    after = read_as_group(cluster, GROUP, dict.fromkeys(_GROUP_TOPICS))
    return [
        Resumed(
            topic=topic,
            before=len(before[topic]),
            after=len(after[topic]),
            stood_at=before[topic][-1] + 1,
            went_on_at=min(after[topic], default=-1),
            acknowledged=acknowledged[topic],
        )
        for topic in _GROUP_TOPICS
    ]


def look(cluster: Cluster, archive: Path, acknowledged: Mapping[str, int]) -> list[Archived]:
    """The content of the archive, beside the brokers' own logs."""
    from maxbrod.archive.archive import open_archive  # noqa: PLC0415
    from maxbrod.sandbox.records import broker_logs, take_inventory  # noqa: PLC0415

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
    from maxbrod.catalog.rows import Segment, decode_rows  # noqa: PLC0415
    from maxbrod.layouts.kafka.reader import read_log  # noqa: PLC0415

    rows = [row for row in decode_rows(archive.catalog.rows(topic=topic)) if isinstance(row, Segment)]
    logs = [
        b"".join(read_log(archive.storage, row).tobytes() for row in rows if row.partition == number)
        for number in range(partitions)
    ]
    return sum(row.bytes for row in rows), logs


def restore(cluster: Cluster, archive: Path, session: Session) -> None:
    """Restore every topic at its own offsets, and the offsets of the group."""
    from maxbrod.config import Config  # noqa: PLC0415
    from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest  # noqa: PLC0415
    from maxbrod.restore.run import Restore  # noqa: PLC0415

    config = Config.model_validate({"archive": str(archive), "kafka": {"bootstrap": cluster.bootstrap}})
    with Restore(config, RestoreRequest(offsets=OffsetsMode.EXACT, groups=(GROUP,)), session=session) as work:
        work.run(work.plan())


def compare(cluster: Cluster, archive: Path, session: Session) -> CompareReport:
    from maxbrod.compare.functions import compare as compare_topics  # noqa: PLC0415

    return compare_topics(bootstrap=cluster.bootstrap, archive=archive, session=session)

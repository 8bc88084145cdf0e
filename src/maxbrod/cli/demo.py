"""`maxbrod demo`: the main job, start to end, on a real cluster in a box that is gone afterwards."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from maxbrod.cli.backup_summary import print_notices
from maxbrod.cli.output import JsonFlag, err, human_bytes, out, print_json, table
from maxbrod.errors import IncompleteError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.table import Table

    from maxbrod.api.archives import Archive
    from maxbrod.api.reports import BackupReport
    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.inventory import TopicInventory
    from maxbrod.spark.session import Session

_PARTITIONS: Final = {"orders": 4, "clicks": 2, "customers": 1, "payments": 1}
_TRANSACTIONS: Final = 8
_TRANSACTION_RECORDS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Archived:
    """A topic as the archive holds it, beside what producers and brokers know of it."""

    inventory: TopicInventory
    acknowledged: int
    stored_bytes: int
    identical: bool
    """Every byte of every partition is what the broker has on its disk."""
    logs: tuple[bytes, ...] = ()

    @property
    def complete(self) -> bool:
        return self.identical and self.inventory.records == self.acknowledged


def demo(
    records: Annotated[int, typer.Option(min=100, help="About how many records to produce.")] = 300_000,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="How many brokers.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Start a real Kafka cluster, fill it, back it up, lose every topic, restore them, and account for every record.

    Cluster and archive live in a temporary folder and are removed at the end. The first run downloads Kafka.
    """
    from maxbrod.api.functions import backup  # noqa: PLC0415 - kafka-python and numba: not for `--help`
    from maxbrod.config import SparkConfig  # noqa: PLC0415
    from maxbrod.sandbox.cluster import Cluster  # noqa: PLC0415
    from maxbrod.sandbox.jars import KAFKA_VERSION, kafka_release  # noqa: PLC0415
    from maxbrod.sandbox.topics import delete_topic  # noqa: PLC0415
    from maxbrod.spark.session import open_configured  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="maxbrod-demo-") as folder:
        with _step(f"get Kafka {KAFKA_VERSION} (the first time it is downloaded)"):
            kafka_release()
        with _step(f"start {brokers} broker{'s'[: brokers > 1]}"):
            cluster = Cluster.start(Path(folder) / "cluster", brokers=brokers)
        archive = Path(folder) / "archive"
        with cluster, ExitStack() as undo:
            with _step("produce"):
                acknowledged = _produce(cluster, records)
            with _step("start Spark"):
                session = undo.enter_context(open_configured(SparkConfig()))
            with _step("back up"):
                report = backup(bootstrap=cluster.bootstrap, archive=archive, session=session)
            with _step("read the archive, and the brokers' own logs"):
                found = _look(cluster, archive, acknowledged)
            with _step("lose every topic"):
                for topic in _PARTITIONS:
                    delete_topic(cluster, topic)
            with _step("restore them from the archive"):
                _restore(cluster, archive, session)
            with _step("compare every record with the archive"):
                restored = {each.inventory.topic: _compare(cluster, each) for each in found}
    _report(found, restored, report, as_json=as_json)


@contextmanager
def _step(name: str) -> Iterator[None]:
    """Say on standard error what goes on and how long it took; standard output is for the result."""
    started = time.monotonic()
    with err.status(f"{name} …"):
        yield
    err.print(f"[green]✓[/green] {name} [dim]{time.monotonic() - started:.1f} s[/dim]", highlight=False, markup=True)


def _produce(cluster: Cluster, records: int) -> dict[str, int]:
    """Fill the topics; returns how many committed records of each the brokers have acknowledged."""
    from maxbrod.model import Codec  # noqa: PLC0415
    from maxbrod.sandbox import events  # noqa: PLC0415
    from maxbrod.sandbox.bulk import produce_records  # noqa: PLC0415
    from maxbrod.sandbox.topics import create_topic  # noqa: PLC0415

    for topic, partitions in _PARTITIONS.items():
        policy = "compact" if topic == "customers" else "delete"
        create_topic(cluster, topic, partitions=partitions, config={"cleanup.policy": policy})
    # Up to now, as a broker would soon delete what is older than its retention.
    first_ms = int(time.time() * 1000) - records * events.INTERVAL_MS
    made = {
        "orders": (events.orders(records * 6 // 10, first_timestamp_ms=first_ms), Codec.LZ4),
        "clicks": (events.clicks(records * 3 // 10, first_timestamp_ms=first_ms), Codec.ZSTD),
        "customers": (events.customers(records // 10, first_timestamp_ms=first_ms), Codec.NONE),
    }
    acknowledged = {
        topic: sum(
            produce_records(cluster, topic, part, partition=partition, codec=codec)
            for partition, part in enumerate(events.split(columns, _PARTITIONS[topic]))
        )
        for topic, (columns, codec) in made.items()
    }
    return {**acknowledged, "payments": _produce_payments(cluster)}


def _produce_payments(cluster: Cluster) -> int:
    """Transactions, every fourth of them aborted; returns how many records were committed."""
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


def _look(cluster: Cluster, archive: Path, acknowledged: Mapping[str, int]) -> list[_Archived]:
    from maxbrod.api.archives import open_archive  # noqa: PLC0415
    from maxbrod.sandbox.inventory import broker_logs, take_inventory  # noqa: PLC0415

    opened = open_archive(str(archive))
    found = []
    for topic, partitions in _PARTITIONS.items():
        stored_bytes, logs = _archived_logs(opened, topic, partitions)
        found.append(
            _Archived(
                inventory=take_inventory(topic, logs),
                acknowledged=acknowledged[topic],
                stored_bytes=stored_bytes,
                identical=logs == broker_logs(cluster, topic, partitions=partitions),
                logs=tuple(logs),
            )
        )
    return found


def _restore(cluster: Cluster, archive: Path, session: Session) -> None:
    from maxbrod.api.restore import Restore  # noqa: PLC0415
    from maxbrod.config import Config  # noqa: PLC0415
    from maxbrod.planning.restore.wish import OffsetsMode, Wish  # noqa: PLC0415

    config = Config.model_validate({"archive": str(archive), "kafka": {"bootstrap": cluster.bootstrap}})
    with Restore(config, Wish(offsets=OffsetsMode.EXACT), session=session) as work:
        work.run(work.plan())


def _compare(cluster: Cluster, archived: _Archived) -> int:
    """How many records stand in the restored topic as they were, at their old offsets; -1 if one does not."""
    from maxbrod.sandbox.inventory import broker_logs, visible_records  # noqa: PLC0415

    topic, equal = archived.inventory.topic, 0
    logs = broker_logs(cluster, topic, partitions=archived.inventory.partitions)
    for number, (before, now) in enumerate(zip(archived.logs, logs, strict=True)):
        wanted, found = (visible_records(log, f"{topic}-{number}") for log in (before, now))
        if not wanted.equals(found):
            return -1
        equal += wanted.num_rows
    return equal


def _archived_logs(archive: Archive, topic: str, partitions: int) -> tuple[int, list[bytes]]:
    """How many bytes they take, and the log of each partition."""
    from maxbrod.catalog.rows import Segment, decode_rows  # noqa: PLC0415
    from maxbrod.layouts.kafka.reading import read_log  # noqa: PLC0415

    rows = [row for row in decode_rows(archive.catalog.rows(topic=topic)) if isinstance(row, Segment)]
    logs = [
        b"".join(read_log(archive.storage, row).tobytes() for row in rows if row.partition == number)
        for number in range(partitions)
    ]
    return sum(row.bytes for row in rows), logs


def _report(found: list[_Archived], restored: Mapping[str, int], report: BackupReport, *, as_json: bool) -> None:
    lacking = [each.inventory.topic for each in found if not _is_back(each, restored)]
    complete = report.complete and not lacking
    if as_json:
        topics = [{**_document(each), "restored": restored[each.inventory.topic]} for each in found]
        print_json({"complete": complete, "topics": topics, "run": report.as_dict()})
    else:
        out.print(_table(found, restored))
        print_notices(report, out)
    if not complete:
        what = f"records are missing or not as they were: {', '.join(lacking) or 'see the notices'}"
        raise IncompleteError(what, hint="this is a bug in maxbrod: please report it")
    if not as_json:
        total = sum(each.acknowledged for each in found)
        text = f": all {total:,} acknowledged records were archived byte for byte, lost, and restored at their offsets"
        out.print(f"[bold green]complete[/bold green]{text}", highlight=False, markup=True, soft_wrap=True)


def _is_back(each: _Archived, restored: Mapping[str, int]) -> bool:
    return each.complete and restored[each.inventory.topic] == each.acknowledged


def _document(found: _Archived) -> dict[str, object]:
    mine = {name: getattr(found, name) for name in ("acknowledged", "stored_bytes", "identical")}
    return {**asdict(found.inventory), **mine}


def _table(found: list[_Archived], restored: Mapping[str, int]) -> Table:
    numbers = (">parts", ">acknowledged", ">archived", ">aborted", ">log", ">stored", ">restored")
    shown = table("Backed up, lost, restored", "topic", *numbers)
    for each in found:
        held = each.inventory
        counts = (held.partitions, each.acknowledged, held.records, held.aborted)
        sizes = (held.bytes, each.stored_bytes)
        back = restored[held.topic]
        shown.add_row(
            held.topic,
            *(f"{count:,}" for count in counts),
            *map(human_bytes, sizes),
            f"{back:,}" if back >= 0 else "differs",
        )
    return shown

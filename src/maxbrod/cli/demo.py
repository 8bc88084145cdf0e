"""`maxbrod demo`: the main job, start to end, on a real cluster in a box that is gone afterwards."""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from maxbrod.cli.output import JsonFlag, err, human_bytes, out, print_json, table
from maxbrod.errors import IncompleteError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.inventory import TopicInventory

_PARTITIONS: Final = {"orders": 4, "clicks": 2, "customers": 1, "payments": 1}
_TRANSACTIONS: Final = 8
_TRANSACTION_RECORDS: Final = 100


def demo(
    records: Annotated[int, typer.Option(min=100, help="About how many records to produce.")] = 300_000,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="How many brokers.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Start a real Kafka cluster, fill it with realistic records, and show what is there.

    The cluster lives in a temporary folder and is removed at the end. The first run downloads Kafka.
    """
    from maxbrod.sandbox.cluster import Cluster  # noqa: PLC0415 - kafka-python and numba: not for `--help`
    from maxbrod.sandbox.inventory import take_inventory  # noqa: PLC0415
    from maxbrod.sandbox.jars import KAFKA_VERSION, kafka_release  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="maxbrod-demo-") as folder:
        with _step(f"get Kafka {KAFKA_VERSION} (the first time it is downloaded)"):
            kafka_release()
        with _step(f"start {brokers} broker{'s'[: brokers > 1]}"):
            cluster = Cluster.start(Path(folder) / "cluster", brokers=brokers)
        with cluster:
            with _step("produce"):
                acknowledged = _produce(cluster, records)
            with _step("read the brokers' logs"):
                found = [take_inventory(cluster, topic, partitions=count) for topic, count in _PARTITIONS.items()]
    _report(acknowledged, found, as_json=as_json)


@contextmanager
def _step(name: str) -> Iterator[None]:
    """Say on standard error what goes on and how long it took; standard output is for the result."""
    started = time.monotonic()
    with err.status(f"{name} …"):
        yield
    err.print(f"[green]✓[/green] {name} [dim]{time.monotonic() - started:.1f} s[/dim]", highlight=False)


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


def _report(acknowledged: dict[str, int], found: list[TopicInventory], *, as_json: bool) -> None:
    missing = {each.topic: acknowledged[each.topic] - each.records for each in found}
    if as_json:
        topics = [{**asdict(each), "acknowledged": acknowledged[each.topic]} for each in found]
        print_json({"complete": not any(missing.values()), "topics": topics})
    else:
        out.print(_table(found))
    if any(missing.values()):
        raise IncompleteError(f"records are missing: {missing}", hint="this is a bug in maxbrod: please report it")
    if not as_json:
        total = sum(acknowledged.values())
        out.print(f"[bold green]complete[/bold green]: all {total:,} acknowledged records are there", highlight=False)


def _table(found: list[TopicInventory]) -> Table:
    numbers = (">partitions", ">records", ">no key", ">tombstones", ">headers", ">aborted", ">size")
    shown = table("What the brokers hold", "topic", *numbers)
    for each in found:
        counts = (each.partitions, each.records, each.without_key, each.tombstones, each.with_headers, each.aborted)
        shown.add_row(each.topic, *(f"{count:,}" for count in counts), human_bytes(each.bytes))
    return shown

"""A stopped broker's empty topics are filled from an archive, and the broker goes on as if it had never been away."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from backup.engine import back_up, config_of
from cold.engine import Cold, log_of
from compare.engine import without_spark as comparing_here
from maxbrod.api.archives import open_archive
from maxbrod.api.snapshots import find_moment
from maxbrod.model import TopicPartition
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.surgery import compact, delete_records
from maxbrod.sandbox.tools import DUMP_LOG_SEGMENTS, run_tool
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import Message, numbered, open_transaction, produce, produce_transaction
from maxbrod.sandbox.waiting import wait_for
from restore.engine import Command, put, read_all, stand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTITIONS: Final = {"plain": 2, "compacted": 1, "ledger": 1, "trimmed": 1, "emptied": 1, "empty": 1}
SMALL: Final = {"segment.bytes": "1048576", "retention.ms": "-1"}
SETTINGS: Final = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    archive: Path
    logs: dict[TopicPartition, bytes]
    extents: dict[TopicPartition, tuple[int, int]]
    seen: dict[TopicPartition, list[tuple[int, bytes]]]
    """By a consumer that reads what is committed."""


def partitions() -> list[TopicPartition]:
    return [TopicPartition(topic=name, partition=each) for name, count in PARTITIONS.items() for each in range(count)]


def fill(cluster: Cluster) -> None:
    for name, count in PARTITIONS.items():
        create_topic(cluster, name, partitions=count, config=SMALL)
    large = [Message(key=b"k", value=b"%d " % number * 200) for number in range(2000)]
    produce(cluster, "plain", large)
    produce(cluster, "plain", numbered(20), partition=1)
    produce(cluster, "compacted", numbered(200, keys=10))
    compact(cluster, "compacted")
    produce_transaction(cluster, "ledger", numbered(5), transactional_id="a", commit=True)
    produce_transaction(cluster, "ledger", numbered(5, first=5), transactional_id="a", commit=False)
    produce(cluster, "trimmed", numbered(50))
    delete_records(cluster, "trimmed", before_offset=20)
    produce(cluster, "emptied", numbered(30))
    delete_records(cluster, "emptied", before_offset=30)


def fill_again(cluster: Cluster) -> None:
    """In a later leader epoch."""
    produce(cluster, "plain", numbered(10, first=2000))
    produce(cluster, "trimmed", numbered(10, first=50))
    produce_transaction(cluster, "ledger", numbered(5, first=10), transactional_id="a", commit=True)
    # Two of one batch each, as somebody has them who begins anew.
    produce(cluster, "plain", numbered(1, first=3000), partition=1)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    place = tmp_path_factory.mktemp("cold-source")
    with Cluster.start(place / "cluster", config=SETTINGS) as cluster, ExitStack() as held:
        (broker,) = cluster.broker_ids
        fill(cluster)
        cluster.restart(broker)
        fill_again(cluster)
        put(cluster, "readers", {("plain", 0): 1234, ("plain", 1): 21, ("ledger", 0): 12, ("trimmed", 0): 33})
        # The last one is open while the backup runs; one that was aborted meanwhile has its marker behind its begin.
        with open_transaction(cluster, "ledger", numbered(2, first=20), transactional_id="b"):
            held.enter_context(open_transaction(cluster, "ledger", numbered(2, first=30), transactional_id="c"))
        assert back_up(config_of(cluster, place / "archive")).complete
        archive = open_archive(str(place / "archive"))
        snapshot = find_moment(archive.storage, archive.catalog.runs(), None).snapshot
        assert snapshot is not None
        ends = {
            TopicPartition(topic=snapshot.topics[each.topic_id], partition=each.partition): end
            for each, end in snapshot.ends.items()
        }
        yield Source(
            archive=place / "archive",
            logs={where: log_of(cluster.log_dir(broker) / str(where), end=ends[where]) for where in partitions()},
            extents={where: (offsets(cluster, where.topic, where.partition)[0], ends[where]) for where in partitions()},
            seen={
                where: [
                    each
                    for each in read_all(cluster, where.topic, where.partition, isolation_level="read_committed")
                    if each[0] < ends[where]
                ]
                for where in partitions()
                if where.topic != "ledger"
            },
        )


def test_all_of_it(source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster.start(tmp_path / "cluster", config=SETTINGS) as cluster:
        (broker,) = cluster.broker_ids
        for name, count in PARTITIONS.items():
            create_topic(cluster, name, partitions=count, config=SMALL)
        cluster.restart(broker)
        disk = cluster.log_dir(broker)
        cold = Cold(source.archive, disk)
        print(cold(capsys, exits=5))
        cluster.stop(broker)
        print(cold(capsys, "--dry-run", exits=0))
        report = cold(capsys)
        print(report)
        import subprocess

        print(
            subprocess.run(
                ["sh", "-c", f"ls -la {disk} {disk}/*; cat {disk}/*checkpoint {disk}/*/*checkpoint"],
                capture_output=True,
                text=True,
            ).stdout
        )
        for where in partitions():
            assert log_of(disk / str(where)) == source.logs[where], where
        cluster.restart(broker)
        assert {where: offsets(cluster, where.topic, where.partition) for where in partitions()} == source.extents
        for where, seen in source.seen.items():
            assert read_all(cluster, where.topic, where.partition, isolation_level="read_committed") == seen
        print(read_all(cluster, "ledger", isolation_level="read_committed"))
        print(cluster.output(broker).read_text()[-6000:])
        command = Command(cluster, source.archive, capsys)
        with comparing_here():
            print(command("compare"))
        print(command("groups", "apply"))
        print(stand(cluster, "readers"))
        print(produce(cluster, "plain", numbered(1, first=3000), partition=1))
        print(offsets(cluster, "plain", 1))

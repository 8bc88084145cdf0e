"""Stopped brokers' empty topics are filled from an archive, and they go on as if they had never been away."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from backup.engine import back_up, config_of
from cold.engine import log_of, without_spark
from compare.engine import without_spark as comparing_here
from maxbrod.api.archives import open_archive
from maxbrod.api.cold_restore import ColdRestore
from maxbrod.api.snapshots import find_moment
from maxbrod.batch.headers import walk
from maxbrod.config import Config
from maxbrod.model import TopicPartition
from maxbrod.planning.restore.cold import LeaderEpochs
from maxbrod.planning.restore.rename import parse_rename
from maxbrod.planning.restore.wish import Wish
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.surgery import compact, delete_records
from maxbrod.sandbox.tools import DUMP_LOG_SEGMENTS, run_tool
from maxbrod.sandbox.topics import create_topic, offsets, replicas, wait_for_in_sync
from maxbrod.sandbox.traffic import Message, numbered, open_transaction, produce, produce_transaction
from maxbrod.sandbox.waiting import wait_for
from restore.engine import Command, put, read_all, stand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.api.cold_report import ColdReport

PARTITIONS: Final = {"plain": 2, "compacted": 1, "ledger": 1, "trimmed": 1, "emptied": 1, "empty": 1, "single": 1}
LOWERED: Final = "lowered"
SMALL: Final = {"segment.bytes": "1048576", "retention.ms": "-1"}
SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
}
STOOD: Final = {("plain", 0): 1234, ("plain", 1): 20, ("ledger", 0): 12, ("trimmed", 0): 33}
_COMMITTED: Final = "read_committed"


def places() -> list[TopicPartition]:
    return [TopicPartition(topic=name, partition=each) for name, count in PARTITIONS.items() for each in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was archived, as its own cluster had it."""

    archive: Path
    logs: dict[TopicPartition, bytes]
    extents: dict[TopicPartition, tuple[int, int]]
    seen: dict[TopicPartition, list[tuple[int, bytes]]]
    """By a consumer that reads what is committed."""


def fill(cluster: Cluster) -> None:
    for name, count in PARTITIONS.items():
        create_topic(cluster, name, partitions=count, config=SMALL)
    produce(cluster, "single", numbered(1))
    produce(cluster, "plain", [Message(key=b"k", value=b"%d " % number * 200) for number in range(2000)])
    produce(cluster, "plain", numbered(20), partition=1)
    produce(cluster, "compacted", numbered(200, keys=10))
    compact(cluster, "compacted")
    produce_transaction(cluster, "ledger", numbered(5), transactional_id="a", commit=True)
    produce_transaction(cluster, "ledger", numbered(5, first=5), transactional_id="a", commit=False)
    for name, kept in (("trimmed", 10), ("emptied", 0)):
        produce(cluster, name, numbered(20))
        produce(cluster, name, numbered(kept, first=20))
        delete_records(cluster, name, before_offset=20)


def fill_again(cluster: Cluster) -> None:
    """In a later leader epoch."""
    produce(cluster, "plain", numbered(10, first=2000))
    produce(cluster, "trimmed", numbered(10, first=30))
    produce_transaction(cluster, "ledger", numbered(5, first=10), transactional_id="a", commit=True)


def ends_of(archive: Path) -> dict[TopicPartition, int]:
    opened = open_archive(str(archive))
    snapshot = find_moment(opened.storage, opened.catalog.runs(), None).snapshot
    assert snapshot is not None
    return {
        TopicPartition(topic=snapshot.topics[each.topic_id], partition=each.partition): end
        for each, end in snapshot.ends.items()
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    place = tmp_path_factory.mktemp("cold-source")
    archive = place / "archive"
    with Cluster.start(place / "cluster", config=SETTINGS) as cluster, ExitStack() as held:
        (broker,) = cluster.broker_ids
        fill(cluster)
        cluster.restart(broker)
        fill_again(cluster)
        put(cluster, "readers", dict(STOOD))
        # The backup ends before the second, which is open, and so before the marker of the first, which is aborted.
        with open_transaction(cluster, "ledger", numbered(2, first=20), transactional_id="b"):
            held.enter_context(open_transaction(cluster, "ledger", numbered(2, first=30), transactional_id="c"))
        wait_for("the marker", lambda: offsets(cluster, "ledger")[1] == 23, timeout_s=60)
        assert back_up(config_of(cluster, archive)).complete
        extents = {
            where: (offsets(cluster, where.topic, where.partition)[0], end) for where, end in ends_of(archive).items()
        }
        disk = cluster.log_dir(broker)
        return Source(
            archive=archive,
            logs={where: log_of(disk / str(where), *extent) for where, extent in extents.items()},
            extents=extents,
            seen={
                where: [each for each in read_all(cluster, where.topic, where.partition, isolation_level=_COMMITTED)]
                for where in places()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    cluster: Cluster
    logs: dict[Path, dict[TopicPartition, bytes]]
    """By directory, as they were before the brokers started on them."""
    dumped: str
    report: ColdReport
    lowered: ColdReport


def restore(source: Source, disks: list[Path], epochs: LeaderEpochs = LeaderEpochs.KEEP, **wish: Any) -> ColdReport:
    config = Config(archive=str(source.archive))
    with without_spark():
        work = ColdRestore(config, Wish(**wish), disks, leader_epochs=epochs)
        return work.run(work.plan())


def dump(folders: list[Path]) -> str:
    """What Kafka's own tool says of logs and of their indexes."""
    logs = [str(each) for folder in folders for each in sorted(folder.glob("*.log"))]
    indexes = [str(each) for folder in folders for each in sorted(folder.glob("*index")) if each.stat().st_size]
    told = run_tool(DUMP_LOG_SEGMENTS, "--deep-iteration", "--files", ",".join(logs))
    return told + run_tool(DUMP_LOG_SEGMENTS, "--verify-index-only", "--files", ",".join(indexes))


@pytest.fixture(scope="module")
def target(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Two brokers, each of which has a replica of everything."""
    with Cluster.start(tmp_path_factory.mktemp("cold-target") / "cluster", brokers=2, config=SETTINGS) as cluster:
        for name, count in PARTITIONS.items():
            create_topic(cluster, name, partitions=count, replication_factor=2, config=SMALL)
        # Each time another one leads, in a later epoch: so that the archive's are none that it has not had.
        for broker in (*cluster.broker_ids, *cluster.broker_ids):
            cluster.restart(broker)
            for where in places():
                wait_for_in_sync(cluster, where.topic, cluster.broker_ids, partition=where.partition)
        create_topic(cluster, LOWERED, partitions=2, replication_factor=2, config=SMALL)
        for broker in cluster.broker_ids:
            cluster.stop(broker)
        disks = [cluster.log_dir(broker) for broker in cluster.broker_ids]
        report = restore(source, disks)
        rename = parse_rename([f"plain={LOWERED}"])
        lowered = restore(source, disks, LeaderEpochs.LOWER, topics=("plain",), rename=rename)
        logs = {disk: {where: log_of(disk / str(where)) for where in places()} for disk in disks}
        dumped = dump([disks[0] / str(where) for where in places()])
        for broker in cluster.broker_ids:
            cluster.restart(broker)
        yield Target(cluster=cluster, logs=logs, dumped=dumped, report=report, lowered=lowered)


def seen(cluster: Cluster) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    return {where: read_all(cluster, where.topic, where.partition, isolation_level=_COMMITTED) for where in places()}


def test_logs_are_the_same_byte_for_byte_on_every_disk(source: Source, target: Target) -> None:
    assert target.report.complete
    assert target.report.batches_lowered == 0
    assert len({epoch for log in source.logs.values() for epoch in walk(log)["leader_epoch"].tolist()}) > 1
    for logs in target.logs.values():
        assert logs == {where: source.logs[where] for where in places()}


def test_kafkas_own_tool_finds_nothing_wrong_with_logs_and_indexes(target: Target) -> None:
    assert target.dumped.count("isvalid: true") > 100
    for complaint in ("isvalid: false", "mismatch", "Index offset", "Could not find", "extends", "Found "):
        assert complaint not in target.dumped


def test_logs_begin_and_end_where_they_did_and_replicas_agree(source: Source, target: Target) -> None:
    for where in (*places(), TopicPartition(topic=LOWERED, partition=0)):
        wait_for_in_sync(target.cluster, where.topic, target.cluster.broker_ids, partition=where.partition)
    found = {where: offsets(target.cluster, where.topic, where.partition) for where in places()}
    assert found == {where: source.extents[where] for where in places()}


def test_consumers_see_what_they_saw_and_never_what_was_aborted(source: Source, target: Target) -> None:
    assert seen(target.cluster) == source.seen


def test_every_record_is_equal_by_comparison(
    source: Source, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(target.cluster, source.archive, capsys)
    with comparing_here():
        assert {each["verdict"] for each in command.json("compare")["partitions"]} == {"equal"}


def test_groups_go_on_where_they_stood(source: Source, target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    command = Command(target.cluster, source.archive, capsys)
    told = command.json("groups", "apply", "--restore", target.report.restore.restore_id)
    assert {each["move"] for each in told["positions"]} == {"same"}
    assert stand(target.cluster, "readers") == STOOD


def test_only_the_epochs_of_lowered_batches_differ(source: Source, target: Target) -> None:
    assert target.lowered.batches_lowered > 0
    for disk in target.logs:
        was, now = source.logs[TopicPartition(topic="plain", partition=0)], log_of(disk / f"{LOWERED}-0", 0, 2010)
        headers = walk(now)
        assert set(headers["leader_epoch"].tolist()) == {0}
        # Four bytes of a batch, from its twelfth on.
        differ = np.flatnonzero(np.frombuffer(was, np.uint8) != np.frombuffer(now, np.uint8))
        begin = headers.position[np.searchsorted(headers.position, differ, side="right") - 1]
        assert differ.size
        assert set((differ - begin).tolist()) <= {12, 13, 14, 15}


def test_a_new_producer_is_never_taken_for_one_of_the_archive(target: Target) -> None:
    """A broker that knew them would take the first record of one with the same id for one that it has, and drop it."""
    cluster, disk = target.cluster, next(iter(target.logs))
    known = walk(log_of(disk / "single-0"))["producer_id"].tolist()
    for _ in range(10):
        produce(cluster, "empty", numbered(1))
        produce(cluster, "single", numbered(1))
    assert offsets(cluster, "single") == (0, 11)
    assert known[0] < 10


def test_what_was_restored_outlives_leaders_and_crashes(source: Source, target: Target) -> None:
    """Last: it leaves more records than it found."""
    cluster = target.cluster
    first, second = cluster.broker_ids
    before = source.seen[TopicPartition(topic="plain", partition=0)]
    produce(cluster, "plain", numbered(5, first=5000))
    for gone in (first, second):
        wait_for_in_sync(cluster, "plain", cluster.broker_ids)
        cluster.kill(gone)
        other = second if gone == first else first
        wait_for(
            f"broker {other} to lead", lambda other=other: replicas(cluster, "plain").leader == other, timeout_s=60
        )
        wait_for("all records", lambda: len(read_all(cluster, "plain")) >= len(before) + 5, timeout_s=60)
        assert read_all(cluster, "plain")[: len(before)] == before
        cluster.restart(gone)
    produce(cluster, "plain", numbered(5, first=6000))
    assert offsets(cluster, "plain") == (0, 2020)

"""Empty topics of stopped brokers are filled from an archive, and the brokers continue as if nothing had happened."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.renames import parse_rename
from maxbrod.archive.snapshots import find_moment
from maxbrod.batch.headers import walk
from maxbrod.config import Config, KafkaConfig
from maxbrod.kafka.produce.appends import Feed, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition
from maxbrod.restore.cold.plan import LeaderEpochs
from maxbrod.restore.cold.run import ColdRestore
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.sandbox.jars import DUMP_LOG_SEGMENTS, run_tool
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.surgery import compact, delete_records
from maxbrod.sandbox.topics import create_topic, delete_topic, offsets, replicas, wait_for_in_sync
from maxbrod.sandbox.traffic import Message, numbered, open_transaction, produce, produce_transaction
from maxbrod.work.work import Work
from support.backups import back_up, config_of
from support.clusters import start_cluster
from support.cold_restores import log_of
from support.native_logs import data_batch
from support.restores import Command, put, read_all, stand
from support.sparkless import without_spark
from support.sparkless import without_spark as comparing_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.restore.report import ColdReport
    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

PARTITIONS: Final = {"plain": 2, "compacted": 1, "ledger": 1, "trimmed": 1, "emptied": 1, "empty": 1, "single": 1}
LOWERED: Final = "lowered"
SMALL: Final = {"segment.bytes": "1048576", "retention.ms": "-1"}
SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
}
STOOD: Final = {("plain", 0): 1234, ("plain", 1): 20, ("ledger", 0): 12, ("trimmed", 0): 33}
_COMMITTED: Final = "read_committed"


def places() -> list[TopicPartition]:
    return [TopicPartition(topic=name, partition=each) for name, count in PARTITIONS.items() for each in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was archived, as its brokers had it; and the same cluster, whose topics were deleted and restored."""

    cluster: Cluster
    archive: Path
    logs: dict[TopicPartition, bytes]
    extents: dict[TopicPartition, tuple[int, int]]
    seen: dict[TopicPartition, list[tuple[int, bytes]]]
    """By a consumer that reads what is committed."""
    written: dict[Path, dict[TopicPartition, bytes]]
    """Logs by directory, as they were before the brokers started on them."""
    dumped: str
    report: ColdReport
    lowered: ColdReport


def create(cluster: Cluster, topic: str, partitions: int) -> None:
    """On both brokers, and the first of them leads."""
    first, second = cluster.broker_ids
    create_topic(cluster, topic, assignments=dict.fromkeys(range(partitions), (first, second)), config=SMALL)


def fill(cluster: Cluster) -> None:
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
    put(cluster, "readers", dict(STOOD))


def let_the_other_lead(cluster: Cluster) -> None:
    """Stops the first broker, which leads everything. The second takes over, in a new epoch."""
    first, second = cluster.broker_ids
    cluster.stop(first)
    for where in places():
        wait_for(
            f"{where} to be led by {second}",
            lambda where=where: replicas(cluster, where.topic, where.partition).leader == second,  # type: ignore[misc]
            timeout_s=120,
        )


def ends_of(archive: Path) -> dict[TopicPartition, int]:
    opened = open_archive(str(archive))
    snapshot = find_moment(opened.storage, opened.catalog.runs(), None).snapshot
    assert snapshot is not None
    return {
        TopicPartition(topic=snapshot.topics[each.topic_id], partition=each.partition): end
        for each, end in snapshot.ends.items()
    }


def archive_of(cluster: Cluster, archive: Path) -> dict[str, Any]:
    """The backup ends before a transaction that is open, and so before the marker of another, which is aborted."""
    with ExitStack() as held:
        with open_transaction(cluster, "ledger", numbered(2, first=20), transactional_id="b"):
            held.enter_context(open_transaction(cluster, "ledger", numbered(2, first=30), transactional_id="c"))
        assert back_up(config_of(cluster, archive)).complete
        ends = ends_of(archive)
        assert ends[TopicPartition(topic="ledger", partition=0)] == 20
        extents = {where: (offsets(cluster, where.topic, where.partition)[0], ends[where]) for where in places()}
        disk = cluster.log_dir(cluster.broker_ids[1])
        return {
            "extents": extents,
            "logs": {where: log_of(disk / str(where), *extent) for where, extent in extents.items()},
            "seen": seen(cluster),
        }


def restore(archive: Path, disks: list[Path], epochs: LeaderEpochs = LeaderEpochs.KEEP, **request: Any) -> ColdReport:
    with without_spark():
        work = ColdRestore(Work(Config(archive=str(archive))), RestoreRequest(**request), disks, leader_epochs=epochs)
        return work.run(work.plan())


def dump(folders: list[Path]) -> str:
    """What Kafka's own tool says of logs and of their indexes."""
    logs = [str(each) for folder in folders for each in sorted(folder.glob("*.log"))]
    indexes = [str(each) for folder in folders for each in sorted(folder.glob("*index")) if each.stat().st_size]
    told = run_tool(DUMP_LOG_SEGMENTS, "--deep-iteration", "--files", ",".join(logs))
    return told + run_tool(DUMP_LOG_SEGMENTS, "--verify-index-only", "--files", ",".join(indexes))


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restored]:
    """Two brokers, each of which has a replica of everything."""
    place = tmp_path_factory.mktemp("cold")
    archive = place / "archive"
    with start_cluster(place / "cluster", brokers=2, config=SETTINGS) as cluster:
        first, second = cluster.broker_ids
        for name, count in PARTITIONS.items():
            create(cluster, name, count)
        fill(cluster)
        let_the_other_lead(cluster)
        cluster.restart(first)
        fill_again(cluster)
        was = archive_of(cluster, archive)
        for name, count in PARTITIONS.items():
            delete_topic(cluster, name)
            create(cluster, name, count)
        # The archive has two epochs; so have the topics from here on, but for one.
        let_the_other_lead(cluster)
        create_topic(cluster, LOWERED, assignments={0: [second], 1: [second]}, config=SMALL)
        disks = [cluster.log_dir(broker) for broker in cluster.broker_ids]
        # A broker writes both a moment after it has made the folder.
        files = ("leader-epoch-checkpoint", "partition.metadata")
        led = [disks[1] / f"{LOWERED}-{number}" / file for number in range(2) for file in files]
        wait_for(f"the logs of {LOWERED}", lambda: all(each.exists() for each in led), timeout_s=120)
        # One has said goodbye, the other has not.
        cluster.kill(second)
        report = restore(archive, disks)
        rename = parse_rename([f"plain={LOWERED}"])
        lowered = restore(archive, disks, LeaderEpochs.LOWER, topics=("plain",), rename=rename)
        written = {disk: {where: log_of(disk / str(where)) for where in places()} for disk in disks}
        dumped = dump([disks[0] / str(where) for where in places()])
        for broker in cluster.broker_ids:
            cluster.restart(broker)
        for where in places():
            wait_for_in_sync(cluster, where.topic, cluster.broker_ids, partition=where.partition)
        yield Restored(
            cluster=cluster,
            archive=archive,
            written=written,
            dumped=dumped,
            report=report,
            lowered=lowered,
            **was,
        )


def seen(cluster: Cluster) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    return {where: read_all(cluster, where.topic, where.partition, isolation_level=_COMMITTED) for where in places()}


def test_logs_are_the_same_byte_for_byte_on_every_disk(restored: Restored) -> None:
    assert (restored.report.complete, restored.report.batches_lowered) == (True, 0)
    assert {epoch for log in restored.logs.values() for epoch in walk(log)["leader_epoch"].tolist()} == {0, 1}
    for logs in restored.written.values():
        assert logs == restored.logs


def test_kafkas_own_tool_finds_nothing_wrong_with_logs_and_indexes(restored: Restored) -> None:
    assert restored.dumped.count("isvalid: true") > 100
    assert not re.search(r"isvalid: false|[Mm]ismatch|Could not find|exception", restored.dumped)


def test_logs_begin_and_end_where_they_did(restored: Restored) -> None:
    found = {where: offsets(restored.cluster, where.topic, where.partition) for where in places()}
    assert found == restored.extents


def test_consumers_see_what_they_saw_and_never_what_was_aborted(restored: Restored) -> None:
    assert seen(restored.cluster) == restored.seen


def test_every_record_is_equal_by_comparison(restored: Restored, capsys: pytest.CaptureFixture[str]) -> None:
    command = Command(restored.cluster, restored.archive, capsys)
    restore_id = restored.report.restore_id
    with comparing_here():
        assert command.json("compare", "--restore", restore_id)["exit_code"] == 0


def test_groups_go_on_where_they_stood(restored: Restored, capsys: pytest.CaptureFixture[str]) -> None:
    put(restored.cluster, "readers", dict.fromkeys(STOOD, 1))
    command = Command(restored.cluster, restored.archive, capsys)
    told = command.json("groups", "apply", "--restore", restored.report.restore_id)
    assert {each["move"] for each in told["positions"]} == {"same"}
    assert stand(restored.cluster, "readers") == STOOD


def test_only_the_epochs_of_lowered_batches_differ(restored: Restored) -> None:
    assert restored.lowered.batches_lowered > 0
    disk = restored.cluster.log_dir(restored.cluster.broker_ids[1])
    was, now = restored.logs[TopicPartition(topic="plain", partition=0)], log_of(disk / f"{LOWERED}-0", 0, 2010)
    headers = walk(now)
    assert set(headers["leader_epoch"].tolist()) == {0}
    differ = np.flatnonzero(np.frombuffer(was, np.uint8) != np.frombuffer(now, np.uint8))
    begin = headers.position[np.searchsorted(headers.position, differ, side="right") - 1]
    assert differ.size
    # Four bytes of a batch, from its twelfth on.
    assert set((differ - begin).tolist()) <= {12, 13, 14, 15}


def test_a_new_producer_is_never_taken_for_one_of_the_archive(restored: Restored) -> None:
    """A new cluster gives the same ids once more. A broker that knew them would take this batch for one that it has."""
    known = walk(restored.logs[TopicPartition(topic="single", partition=0)])["producer_id"].tolist()
    identity = ProducerIdentity(producer_id=known[0], epoch=0)
    data = np.frombuffer(data_batch(0), np.uint8)
    with KafkaClient(KafkaConfig(bootstrap=restored.cluster.bootstrap)) as client:
        feed = Feed(
            where=TopicPartition(topic="single", partition=0),
            topic_id=client.topic("single", deadline=Deadline.after(60)).topic_id,
            first_offset=1,
            appends=stamped(data.copy(), walk(data), identity, first_sequence=0),
        )
        assert [each.base_offset for each in produce_all(client, [feed], patience_s=60)] == [1]


def test_what_was_restored_outlives_leaders_and_crashes(restored: Restored) -> None:
    """Last: it leaves more records than it found."""
    cluster = restored.cluster
    before = restored.seen[TopicPartition(topic="plain", partition=0)]
    produce(cluster, "plain", numbered(5, first=5000))
    wait_for_in_sync(cluster, "plain", cluster.broker_ids)
    gone = replicas(cluster, "plain").leader
    assert gone is not None
    cluster.kill(gone)
    wait_for("another leader", lambda: replicas(cluster, "plain").leader not in {None, gone}, timeout_s=120)
    cluster.restart(gone)
    wait_for_in_sync(cluster, "plain", cluster.broker_ids)
    assert replicas(cluster, "plain").leader != gone
    assert read_all(cluster, "plain")[: len(before)] == before
    produce(cluster, "plain", numbered(5, first=6000))
    assert offsets(cluster, "plain") == (0, 2020)

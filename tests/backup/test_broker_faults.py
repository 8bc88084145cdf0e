"""Brokers die, stop, hang and hand over under a backup: it completes, or names what is missing and completes later."""

from __future__ import annotations

import struct
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.renames import Rename
from maxbrod.check.run import check_archive
from maxbrod.compare.plan import CompareRequest
from maxbrod.compare.run import Comparison
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE
from maxbrod.inspect.garbage import collect_garbage
from maxbrod.inspect.listing import list_topics
from maxbrod.inspect.topic import show_topic
from maxbrod.model import topic_id_text
from maxbrod.replicate.link import State
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.sandbox.surgery import delete_records, lose_by_unclean_election
from maxbrod.sandbox.topics import create_topic, replicas, topic_id, wait_for_in_sync
from maxbrod.sandbox.traffic import numbered
from maxbrod.table.read.counts import count_records
from maxbrod.table.read.options import parse_options
from maxbrod.work.work import Work
from support.archive_oracle import read_archive
from support.backups import back_up, back_up_while, config_of, kinds, settles
from support.clusters import start_cluster
from support.ledger import Ledger
from support.replications import link_config, only, take_in
from support.restore_faults import restore
from support.restores import read_all
from support.sparkless import without_spark as comparing_without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

KEEP = {"retention.ms": "-1"}


def held_of(config: Config, topic: str, partition: int = 0) -> int:
    """The first offset that the archive has not."""
    rows = open_archive(str(config.archive)).catalog.rows(topic=topic, partition=partition)
    return max(rows["end_offset"].to_pylist(), default=0)


def mend(cluster: Cluster, topic: str, broker: int) -> None:
    cluster.restart(broker)
    cluster.wait_until_settled()
    if len(replicas(cluster, topic).replicas) == len(cluster.broker_ids):
        wait_for_in_sync(cluster, topic, cluster.broker_ids)


@pytest.mark.parametrize("death", ["kill", "stop"])
def test_a_leader_that_dies_or_moves_while_it_is_read_costs_nothing(
    cluster3: Cluster, topic: str, tmp_path: Path, death: str
) -> None:
    create_topic(cluster3, topic, replication_factor=3, config=KEEP)
    ledger = Ledger()
    # Several answers of the least that a task asks for.
    ledger.write(cluster3, topic, 900, value_bytes=1500)
    wait_for_in_sync(cluster3, topic, cluster3.broker_ids)
    leader = replicas(cluster3, topic).leader
    assert leader is not None
    try:
        report = back_up_while(
            config_of(cluster3, tmp_path / "archive", topic),
            lambda: getattr(cluster3, death)(leader),
            after_chunks=1,
        )
    finally:
        mend(cluster3, topic, leader)
    assert (report.exit_code, report.records) == (0, 900), report.notices
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)


def test_a_broker_that_hangs_for_less_than_the_patience_costs_nothing(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 900, value_bytes=1500)
    (broker,) = cluster.broker_ids
    resume = threading.Timer(3, cluster.resume, [broker])

    def hang() -> None:
        cluster.suspend(broker)
        resume.start()

    report = back_up_while(config_of(cluster, tmp_path / "archive", topic), hang, after_chunks=1)
    resume.join()
    assert (report.exit_code, report.records) == (0, 900), report.notices
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)


@pytest.mark.parametrize("after_chunks", [0, 1], ids=["after planning", "while it is read"])
def test_partitions_of_a_broker_that_stays_away_are_named_and_all_others_archived(
    cluster3: Cluster, topic: str, tmp_path: Path, after_chunks: int
) -> None:
    first, second, _ = cluster3.broker_ids
    create_topic(cluster3, topic, assignments={0: [first], 1: [second]}, config=KEEP)
    ledger = Ledger()
    for partition in range(2):
        ledger.write(cluster3, topic, 900, partition=partition, value_bytes=1500)
    config = config_of(cluster3, tmp_path / "archive", topic, patience=4)
    try:
        report = back_up_while(config, lambda: cluster3.kill(first), after_chunks=after_chunks)
        assert report.exit_code == EXIT_INCOMPLETE, report.notices
        (notice,) = (each for each in report.notices if each.kind == "failed")
        assert (notice.topic, notice.partition, notice.end_offset) == (topic, 0, 900)
        assert (report.recovery_point_ms, report.waiting) == (None, 900 - held_of(config, topic))
        held = read_archive(str(tmp_path / "archive"))
        held.assert_prefix_of(ledger)
        key = (topic_id_text(topic_id(cluster3, topic)), 1)
        assert held.records[key] == ledger.records[key]
        # Gone already when a run is planned: the same.
        again = back_up(config)
        assert (again.exit_code, kinds(again).count("failed")) == (EXIT_INCOMPLETE, 1)
        # Nobody can be asked what the log has, so that nobody knows what is missing of it.
        assert (again.recovery_point_ms, again.waiting) == (None, None)
        checked = check_archive(open_archive(str(config.archive)))
        (problem,) = checked.problems
        assert (problem.kind, problem.partition, problem.end_offset) == ("not archived", 0, None)
        assert checked.unfinished_runs[-1].run_id == again.run_id
    finally:
        mend(cluster3, topic, first)
    last = back_up(config.model_copy(update={"patience": 120.0}))
    assert (last.exit_code, last.recovery_point_ms, last.waiting) == (0, last.started_at_ms, 0)
    assert list_topics(open_archive(str(config.archive))).recovery_point == last.started_at_ms
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)


def test_what_an_unclean_election_lost_is_replaced_by_what_the_log_has_now(
    cluster3: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster3, topic, replication_factor=2, config={**KEEP, "min.insync.replicas": "1"})
    ledger = Ledger()
    ledger.produce(cluster3, topic, numbered(40))
    config = config_of(cluster3, tmp_path / "archive", topic)
    held = replicas(cluster3, topic)
    wait_for_in_sync(cluster3, topic, held.replicas)
    first = back_up(config)
    assert first.exit_code == 0
    seen = []
    modes = [{"offsets": each, "link": f"{topic}-{each}", "rename": (), "prefix": each} for each in ("exact", "append")]
    links = [link_config(cluster3, tmp_path / "archive", topic, **mode) for mode in modes]

    def archive_what_will_be_lost() -> None:
        seen.append(back_up(config))
        assert [only(take_in(each)).end for each in links] == [47, 47]

    lost = lose_with(cluster3, topic, archive_what_will_be_lost)
    try:
        assert seen[0].records == 7
        # The log grows past what was archived, so that its end alone would tell nothing.
        ledger.produce(cluster3, topic, numbered(20, first=1000))
        report = back_up(config)
        assert (report.exit_code, kinds(report).count("truncated")) == (0, 1), report.notices
        (notice,) = (each for each in report.notices if each.kind == "truncated")
        assert (notice.first_offset, notice.end_offset) == (40, 47)
        read_archive(str(tmp_path / "archive")).assert_equals(ledger)
        assert settles(config)
    finally:
        mend(cluster3, topic, lost)
    for each in links:  # replication never continues behind records that the source has lost
        found = only(take_in(each))
        assert (found.state, found.end) == (State.FAULTED, 47), found
    assert_as_each_run_left_it(cluster3, topic, config, {first.run_id: 40, seen[0].run_id: 47, report.run_id: 60})


def assert_as_each_run_left_it(cluster: Cluster, topic: str, config: Config, runs: dict[str, int]) -> None:
    """What an election lost is as of the run that archived it still there, in every verb, and no garbage."""
    archive = open_archive(str(config.archive))
    assert collect_garbage(archive).young_objects == 0, "every object is named by some row"
    assert check_archive(archive).problems == ()
    for number, (run_id, count) in enumerate(runs.items()):
        found = count_records(parse_options({"path": str(config.archive), "asOf": run_id, "topics": topic}))
        assert [each.records for each in found or ()] == [count]
        (shown,) = show_topic(archive, topic, as_of=run_id).topics[0].partitions
        assert (shown.end_offset, shown.records) == (count, count)
        assert [each.records for each in list_topics(archive, [topic], as_of=run_id).topics] == [count]
        request = RestoreRequest(topics=(topic,), as_of=run_id, rename=Rename(suffix=f"-{number}"))
        report = restore(config, request)
        assert (report.exit_code, report.records) == (0, count)
        lost = 40 <= count < 60
        values = [value for _, value in read_all(cluster, f"{topic}-{number}")]
        expected = [*numbered(40), *(numbered(7, first=500) if lost else numbered(20, first=1000))][:count]
        assert values == [each.value for each in expected]
        with comparing_without_spark(), Comparison(Work(config), CompareRequest(selection=request)) as comparison:
            assert comparison.run().equal
        # By the restore's own report: nobody has to say again which run that was.
        restored = CompareRequest(selection=replace(request, as_of=None))
        with comparing_without_spark(), Comparison(Work(config), restored) as comparison:
            assert comparison.run().equal


def lose_with(cluster: Cluster, topic: str, before_it_is_lost: object) -> int:
    """An unclean election that loses 7 records, which a backup has read meanwhile; returns the broker that is dead."""
    kill = cluster.kill
    leader = replicas(cluster, topic).leader

    def killing(broker: int) -> None:
        if broker == leader:
            assert callable(before_it_is_lost)
            before_it_is_lost()
        kill(broker)

    cluster.kill = killing  # type: ignore[method-assign,assignment]
    try:
        return lose_by_unclean_election(cluster, topic, numbered(7, first=500)).old_leader
    finally:
        del cluster.kill


def test_a_corrupt_batch_is_named_the_rest_archived_and_nothing_more_said_once_it_is_gone(
    topic: str, tmp_path: Path
) -> None:
    with start_cluster(tmp_path / "cluster") as cluster:
        create_topic(cluster, topic, partitions=2, config=KEEP)
        ledger = Ledger()
        ledger.write(cluster, topic, 300)
        ledger.write(cluster, topic, 100, partition=1)
        key = (topic_id_text(topic_id(cluster, topic)), 0)
        (broker,) = cluster.broker_ids
        cluster.stop(broker)
        damage(cluster, topic, 120)
        cluster.restart(broker)
        config = config_of(cluster, tmp_path / "archive", topic)
        report = back_up(config)
        assert report.exit_code == EXIT_CORRUPT, report.notices
        (notice,) = (each for each in report.notices if each.kind == "corrupt")
        assert (notice.topic, notice.partition, notice.first_offset, notice.end_offset) == (topic, 0, 100, 150)
        ledger.forget(key, range(100, 150))
        held = read_archive(str(tmp_path / "archive"))
        held.assert_equals(ledger)
        # It stays in the log, so every run looks again and says so again.
        ledger.write(cluster, topic, 20)
        assert back_up(config).exit_code == EXIT_CORRUPT
        read_archive(str(tmp_path / "archive")).assert_equals(ledger)
        delete_records(cluster, topic, before_offset=200)
        after = back_up(config)
        assert after.exit_code == 0, after.notices
        held = read_archive(str(tmp_path / "archive"))
        held.assert_equals(ledger)
        assert held.gaps[key] == [(100, 150, "corrupt")]


def damage(cluster: Cluster, topic: str, offset: int) -> None:
    """Flip a bit in the batch that has this offset, in the log on the broker's disk."""
    for segment in sorted((cluster.log_dir(cluster.broker_ids[0]) / f"{topic}-0").glob("*.log")):
        data = bytearray(segment.read_bytes())
        at = 0
        while at < len(data):
            base, length = struct.unpack_from(">qi", data, at)
            last = base + struct.unpack_from(">i", data, at + 23)[0]
            if base <= offset <= last:
                data[at + 12 + length - 3] ^= 0x10
                segment.write_bytes(data)
                return
            at += 12 + length
    raise AssertionError(f"no batch has offset {offset}")

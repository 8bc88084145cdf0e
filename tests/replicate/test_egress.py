"""Several instances of egress: they divide the partitions, and take over those of one that is lost or leaves."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import last_snapshot_run, read_snapshot
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.config import Config, StorageConfig
from maxbrod.errors import UnavailableError, UsageError
from maxbrod.model import TopicPartition, now_ms
from maxbrod.replicate.archive_lease import FOLDER, ArchiveLease, ArchiveMembers, Note, read_note
from maxbrod.replicate.egress import EgressShare, follow_source
from maxbrod.replicate.shares import Shares
from maxbrod.replicate.status import LinkStatus, egress_instances
from maxbrod.replicate.summary import _ranges, print_status
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.storage.stores import open_storage
from support.replications import assert_mirrored, egress_program, link_config, take_in, wait_until_stopped
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.backup.follow import Interval
    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.storage.interface import Storage

BROKERS = {TopicPartition(topic="a", partition=number): number % 2 for number in range(6)}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path), StorageConfig())


# The lease


def test_one_holds_the_lease_and_one_that_waits_takes_it_when_it_has_not_been_renewed(storage: Storage) -> None:
    clock = Clock()
    first, second = (ArchiveLease(storage, takeover_s=30, clock=clock) for _ in range(2))
    assert first.hold()
    assert not second.hold()
    assert second.seen.instance == first.instance
    for clock.now in (29.0, 50.0, 75.0):
        assert first.hold(), "it renews"
        assert not second.hold()
    clock.now = 104.9
    assert not second.hold()
    clock.now = 105.0
    assert second.hold()
    assert second.takeovers == 1
    assert not first.renew(), "it slept, and finds its lease gone"
    assert not first.hold()


def test_an_instance_that_slept_never_holds_the_lease_again_although_old_objects_are_gone(storage: Storage) -> None:
    """The holder deletes old objects, so that the one that slept can create the number that follows its own."""
    clock = Clock()
    first, second = (ArchiveLease(storage, takeover_s=30, clock=clock) for _ in range(2))
    assert first.hold()
    assert not second.hold()
    for clock.now in (30.0, 60.0, 90.0):
        assert second.hold()
    assert not first.renew()
    assert second.renew()
    assert len(list(storage.list(FOLDER))) == 1


def test_of_two_that_take_a_free_lease_one_gets_it(storage: Storage) -> None:
    first, second = (ArchiveLease(storage, takeover_s=30, clock=Clock()) for _ in range(2))
    assert read_note(storage) == Note(number=0, instance=None)
    assert first.hold()
    assert not second._put(Note(number=1, instance=second.instance)), "the number that both saw to be free"


def test_a_lease_that_is_given_back_is_taken_at_once_and_fences_nobody(storage: Storage) -> None:
    fences: list[int] = []
    first, second = (ArchiveLease(storage, takeover_s=30, raise_fence=fences.append, clock=Clock()) for _ in range(2))
    assert first.hold()
    assert not second.hold()
    first.release()
    assert second.hold()
    assert (second.takeovers, second.fence, fences) == (0, 0, []), "nobody was lost"


def test_a_lease_is_held_only_once_the_one_that_lost_it_is_fenced(storage: Storage) -> None:
    fences: list[int] = []
    clock, reachable = Clock(), [False]

    def raise_fence(fence: int) -> None:
        if not reachable[0]:
            raise UnavailableError("no answer")
        fences.append(fence)

    first, second = (ArchiveLease(storage, takeover_s=30, raise_fence=raise_fence, clock=clock) for _ in range(2))
    assert first.hold()
    assert not second.hold()
    clock.now = 30.0
    with pytest.raises(UnavailableError):
        second.hold()
    assert not second.renew()
    reachable[0] = True
    assert second.hold()
    assert fences == [second.fence]
    assert second.fence > first.fence


# Shares


class Instance:
    """An instance without a cluster. `fences` is the catalog's."""

    def __init__(self, storage: Storage, clock: Clock, fences: list[int]) -> None:
        self.fences = fences
        lease = ArchiveLease(storage, takeover_s=30, raise_fence=fences.append, clock=clock)
        self.members = ArchiveMembers(storage, lease.instance, takeover_s=30, clock=clock)
        self.shares = Shares(lease, self.members, takeover_s=30, clock=clock)
        self.name = lease.instance

    def look(self) -> set[TopicPartition]:
        """What it works on from now on."""
        self.shares.look()
        if self.shares.leads:
            self.shares.divide(BROKERS)
        return {where for where in BROKERS if self.shares.has(where)}

    def may_commit(self) -> bool:
        return self.shares.claim >= max(self.fences, default=0)

    def has_all(self) -> bool:
        return self.shares.whole


@contextmanager
def _instances(storage: Storage, clock: Clock, count: int) -> Iterator[list[Instance]]:
    fences: list[int] = []
    with ExitStack() as undo:
        found = [Instance(storage, clock, fences) for _ in range(count)]
        for each in found:
            undo.callback(each.shares.leave)
        yield found


def test_instances_divide_all_partitions_and_the_single_one_writes_no_shares(storage: Storage) -> None:
    clock = Clock()
    with _instances(storage, clock, 2) as (first, second):
        assert first.look() == set(BROKERS)
        assert first.has_all()
        assert [each.partitions for each in egress_instances(storage, now_ms())] == [None]
        assert second.look() == set()
        clock.now = 10.0
        mine = first.look()
        theirs = second.look()
        assert not mine & theirs
        assert mine | theirs == set(BROKERS)
        assert len(mine) == len(theirs) == 3
        assert not first.has_all()
        known = {each.instance: set(each.partitions or ()) for each in egress_instances(storage, now_ms())}
        assert known == {first.name: mine, second.name: theirs}
        second.shares.leave()
        clock.now = 20.0
        assert first.look() == set(BROKERS)
        assert first.has_all()


def test_an_instance_that_was_killed_is_not_said_to_lead(storage: Storage, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with _instances(storage, clock, 2) as (first, second):
        for now in (0.0, 10.0):
            clock.now = now
            first.look()
            second.look()
        at_ms = now_ms()
        lively = egress_instances(storage, at_ms)
        assert {each.instance: (each.leads, each.lives) for each in lively} == {
            first.name: (True, True),
            second.name: (False, True),
        }
        later = egress_instances(storage, at_ms + 61_000)
        assert {(each.leads, each.lives) for each in later} == {(False, False)}
        assert [each.partitions for each in later] == [each.partitions for each in lively]
    status = LinkStatus(
        link="l", archive="a", version=1, at_ms=at_ms, heartbeat_ms=None, ingress_ms=None, partitions=(), egress=later
    )
    print_status(status)
    said = capsys.readouterr().out
    assert " leads" not in said
    assert f"egress {first.name} has not reported since" in said


def test_a_partition_moves_only_after_the_one_that_had_it_has_heard_of_it(storage: Storage) -> None:
    clock = Clock()
    with _instances(storage, clock, 3) as (first, second, third):
        first.look(), second.look()
        clock.now = 10.0
        first.look()
        had = second.look()
        third.look()
        clock.now = 20.0
        first.look()
        works = third.look()
        assert not works & had, "the second may still be at work on what it had"
        kept = second.look()
        clock.now = 21.0
        first.look()
        assert not third.look() & kept
        assert [len(each.look()) for each in (first, second, third)] == [2, 2, 2]
        assert first.fences == [], "nobody was lost"


def test_what_a_lost_instance_had_is_given_to_others_behind_a_fence(storage: Storage) -> None:
    clock = Clock()
    with _instances(storage, clock, 3) as (first, second, third):
        for clock.now in (0.0, 10.0, 11.0, 20.0):
            shares = [each.look() for each in (first, second, third)]
        assert sorted(map(len, shares)) == [2, 2, 2]
        lost = shares[2]
        for clock.now in (30.0, 40.0, 49.0):
            assert not lost & (first.look() | second.look()), "it may still be heard of"
        assert third.may_commit()
        for clock.now in (51.0, 60.0):
            mine, theirs = first.look(), second.look()
        assert mine | theirs == set(BROKERS)
        assert first.shares.takeovers == 1
        assert first.may_commit()
        assert second.may_commit()
        assert not third.may_commit(), "it was stopped, continues in the middle of its run, and does not know"
        assert third.shares.claim_again(lost) is None
        assert third.shares.keeps(lost) == set()
        assert first.shares.keeps(BROKERS) == mine
        clock.now = 61.0
        third.look()
        clock.now = 70.0
        first.look(), second.look()
        assert sorted(map(len, (first.look(), second.look(), third.look()))) == [2, 2, 2], "it has come back"


def test_an_instance_in_the_middle_of_its_run_keeps_its_claim_when_another_one_is_lost(storage: Storage) -> None:
    clock = Clock()
    with _instances(storage, clock, 3) as (first, second, third):
        for clock.now in (0.0, 10.0, 11.0, 20.0):
            working = [each.look() for each in (first, second, third)][1]
        for clock.now in (30.0, 40.0, 50.0, 61.0):
            second.members.tell(second.shares.generation)  # as its thread does while the run takes long
            first.look()
        assert first.fences
        assert not second.may_commit()
        assert second.shares.claim_again(working) == first.fences[-1]
        assert second.shares.claim_again(BROKERS) is None, "not what it does not have"
        assert second.shares.keeps(working) == working


def test_another_instance_leads_when_the_leader_is_lost(storage: Storage) -> None:
    clock = Clock()
    with _instances(storage, clock, 2) as (first, second):
        for clock.now in (0.0, 10.0, 11.0):
            first.look(), second.look()
        for clock.now in (20.0, 30.0, 39.9):
            assert len(second.look()) == 3
        clock.now = 41.0
        assert second.look() == set(BROKERS)
        assert second.shares.leads
        assert second.may_commit()
        assert not first.may_commit()
        assert first.shares.claim_again([]) is None
        assert first.shares.keeps(BROKERS) == set()


def test_partitions_of_an_instance_are_shown_as_ranges() -> None:
    found = [("a", 0), ("a", 1), ("a", 2), ("a", 5), ("b", 3)]
    assert _ranges([TopicPartition(topic=topic, partition=each) for topic, each in found]) == "a 0-2, 5; b 3"


# Against a cluster


def test_an_egress_stands_by_for_one_partition_and_takes_over(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, every=0.2, roll_age=0, takeover=20)
    produce(cluster, topic, numbered(10))
    with without_spark(), _egress(config) as first:
        wait_for("ten records", lambda: _archived(config) == 10, timeout_s=60)
        with _egress(config) as second:
            wait_for("an instance that stands by", lambda: second.shares and not second.shares[-1].any, timeout_s=60)
            with pytest.raises(UnavailableError, match="another instance archives here"):
                follow_source(
                    link_config(cluster, tmp_path / "archive", topic, once=True, every=0.2, takeover=3600),
                    stop=threading.Event(),
                    on_interval=lambda _: None,
                )
            first.stop.set()
            produce(cluster, topic, numbered(10, first=10))
            wait_for("twenty records", lambda: _archived(config) == 20, timeout_s=60)


def test_a_topic_with_limits_of_its_own_does_not_wait_for_those_of_all(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    slow, fast = f"{topic}-slow", f"{topic}-fast"
    for each in (slow, fast):
        create_topic(cluster, each)
        produce(cluster, each, numbered(5))
    limits = {"roll_age": 3600.0, "topic_limits": (f"{fast}:records=5,age=2h",)}
    config = link_config(cluster, tmp_path / "archive", slow, fast, once=True, **limits)
    read: list[list[str]] = []

    def note(interval: Interval) -> None:
        assert interval.report is not None
        read.append([each.topic for each in interval.report.topics if each.records])

    with without_spark():
        follow_source(config, stop=threading.Event(), on_interval=note)
    assert read == [[fast], [slow]], "the last one as a stop does"


def test_an_egress_that_runs_once_refuses_a_name_that_the_source_does_not_have(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic)
    misspelt = link_config(cluster, tmp_path / "archive", topic, f"{topic}s", once=True)
    with without_spark(), pytest.raises(UsageError, match="has no topic"):
        follow_source(misspelt, stop=threading.Event(), on_interval=lambda _: None)


def test_two_egresses_archive_their_shares_and_together_all_of_the_source(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic, partitions=4)
    config = link_config(cluster, tmp_path / "archive", topic, every=0.2, roll_age=0, takeover=8)
    with without_spark(), _egress(config) as first, _egress(config) as second:
        wait_for("a division", lambda: _divided(config, [2, 2]), timeout_s=120)
        for number in range(3):
            _produce(cluster, topic, first=10 * number)
            wait_for("the records", partial(_has, config, 40 * (number + 1)), timeout_s=120)
        catalog = open_archive(str(config.archive), config.storage).catalog
        writers = [_runs_of(each, set(catalog.rows()["run_id"].to_pylist())) for each in (first, second)]
        assert all(writers), "each has archived some"
        last = last_snapshot_run(catalog.runs())
        assert last is not None
        snapshot = read_snapshot(open_storage(str(config.archive), config.storage), last)
        assert len(snapshot.ends) == len(snapshot.log_starts) == 4, "a run of a share tells of the other one, too"
        assert len([each for each in snapshot.recovery_points.values() if each is not None]) == 4
        assert last.statistics["of_partitions"] == 4
        (first if first.shares[-1].leads else second).stop.set()
        _produce(cluster, topic, first=30)
        wait_for("all records", lambda: _archived(config) == 160, timeout_s=120)
        assert not [each.error for each in (*first.intervals, *second.intervals) if each.error]
    _assert_equal(cluster, config, topic)


def test_an_egress_that_was_stopped_before_its_commit_writes_nothing_after_others_have_taken_over(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic, partitions=4)
    config = link_config(cluster, tmp_path / "archive", topic, every=0.2, roll_age=0, takeover=6)
    flag = tmp_path / "stop"
    with without_spark(), egress_program(config, flag) as stopped:
        wait_for("a run", lambda: _divided(config, [0]), timeout_s=120)
        with _egress(config) as other:
            wait_for("a division", lambda: _divided(config, [2, 2]), timeout_s=120)
            flag.touch()
            _produce(cluster, topic, first=0)
            wait_until_stopped(stopped)
            wait_for("a takeover", lambda: _archived(config) == 40, timeout_s=120)
            before = _run_ids(config)
            assert other.shares[-1].takeovers == 1
            stopped.send_signal(signal.SIGCONT)
            assert stopped.stdout is not None
            assert stopped.stdout.readline() == "dropped\n"
            assert _run_ids(config) == before, "nothing was written"
            wait_for("a division", lambda: _divided(config, [2, 2]), timeout_s=120)
            _produce(cluster, topic, first=10)
            wait_for("all records", lambda: _archived(config) == 80, timeout_s=120)
    _assert_equal(cluster, config, topic)


class _Egress:
    def __init__(self) -> None:
        self.stop = threading.Event()
        self.shares: list[EgressShare] = []
        self.intervals: list[Interval] = []


@contextmanager
def _egress(config: Config) -> Iterator[_Egress]:
    found = _Egress()
    thread = threading.Thread(
        target=follow_source,
        args=(config,),
        kwargs={"stop": found.stop, "on_interval": found.intervals.append, "on_share": found.shares.append},
    )
    thread.start()
    try:
        yield found
    finally:
        found.stop.set()
        thread.join()


def _produce(cluster: Cluster, topic: str, *, first: int) -> None:
    for partition in range(4):
        produce(cluster, topic, numbered(10, first=first), partition=partition)


def _divided(config: Config, sizes: list[int]) -> bool:
    found = egress_instances(open_storage(str(config.archive), config.storage), now_ms())
    return sorted(len(each.partitions or ()) for each in found) == sizes


def _runs_of(egress: _Egress, committed: set[str]) -> set[str]:
    return {each.report.run_id for each in egress.intervals if each.report is not None} & committed


def _run_ids(config: Config) -> list[str]:
    return [each.run_id for each in open_archive(str(config.archive), config.storage).catalog.runs()]


def _archived(config: Config) -> int:
    try:
        positions = open_archive(str(config.archive), config.storage, layout="kafka").catalog.positions()
    except Exception:  # noqa: BLE001 - it may not exist yet
        return 0
    return sum(each.end_offset for each in positions.values())


def _has(config: Config, records: int) -> bool:
    return _archived(config) == records


def _assert_equal(cluster: Cluster, config: Config, topic: str) -> None:
    """Every offset is archived once, and what is restored from it has the source's records at their offsets."""
    rows = open_archive(str(config.archive), config.storage).catalog.rows()
    faults = find_tiling_faults(rows)
    assert faults.complete, faults
    take_in(config)
    for partition in range(4):
        assert_mirrored(cluster, topic, partition)

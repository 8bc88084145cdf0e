"""Exactly once, whoever writes and whenever it dies: two writers, kill -9, a writer that wakes up late."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from maxbrod.config import KafkaConfig
from maxbrod.kafka.produce.appends import misplaced
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.replicate.ingress.mode import Mode
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import Link, State
from maxbrod.replicate.link_lease import LinkLease
from maxbrod.replicate.promote import promote
from maxbrod.replicate.shares import NOBODY, Shares
from maxbrod.replicate.status import link_status
from maxbrod.restore.items import Restored, RestoreItem
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from support.replications import (
    SUFFIX,
    archive,
    assert_mirrored,
    ingress_program,
    link_config,
    only,
    produce_small_batches,
    take_in,
    tell,
    told,
    wait_until_stopped,
)
from support.restore_oracle import log_of

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

_NEVER = 0


def test_two_racing_writers_append_every_record_once(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read the same log end and send the same offsets, in batches that are cut differently.

    The lease would keep one of them from working, so both do without.
    """
    monkeypatch.setattr(LinkLease, "hold", lambda _: True)
    monkeypatch.setattr(Shares, "keeps", lambda _, partitions: set(partitions))
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, rate_bytes_per_s=50_000)
    produce_small_batches(cluster, topic, 10)
    archive(config)
    take_in(config)  # the mirror and its marks are there, as after a takeover
    produce_small_batches(cluster, topic, 3000)
    archive(config)
    with ingress_program(config, "without lease", stop_at=_NEVER) as process, Ingress(config) as other:
        states = set[str]()
        while states != {State.IN_STEP}:
            tell(process)
            mine = other.run()
            states = {*told(process), *mine.states}
            assert states <= {State.CATCHING_UP, State.IN_STEP}, mine
    assert_mirrored(cluster, topic)


def test_an_ingress_killed_at_any_point_continues_from_the_destination(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, takeover=0)
    produce_small_batches(cluster, topic, 400)
    produce_transaction(cluster, topic, numbered(20, first=400), transactional_id=topic, commit=False)
    produce_small_batches(cluster, topic, 400)
    archive(config)
    reached = -1
    for stop_at in (1, 12, 30):
        with ingress_program(config, stop_at=stop_at) as process:
            tell(process)
            wait_until_stopped(process)
            process.kill()
        end = offsets(cluster, topic + SUFFIX)[1]
        assert reached < end < 821
        reached = end
    assert only(take_in(config)).state is State.IN_STEP
    assert offsets(cluster, topic + SUFFIX) == offsets(cluster, topic) == (0, 821)
    source = log_of(cluster, topic)
    assert log_of(cluster, topic + SUFFIX) == {at: each for at, each in source.items() if not 400 <= at < 420}


def test_a_writer_that_wakes_up_late_never_doubles_a_record(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    """One is stopped in the middle of its work, another one finishes and goes on, the first one continues."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, takeover=0)
    produce_small_batches(cluster, topic, 500)
    archive(config)
    with ingress_program(config, stop_at=10) as process:
        tell(process)
        wait_until_stopped(process)
        assert offsets(cluster, topic + SUFFIX)[1] < 500
        assert only(take_in(config)).state is State.IN_STEP
        produce(cluster, topic, numbered(100, first=500))
        archive(config)
        take_in(config)
        os.kill(process.pid, signal.SIGCONT)
        assert set(told(process)) == {State.CATCHING_UP}, "the broker refused what it sent"
        tell(process)
        assert set(told(process)) == {State.IN_STEP}
    assert_mirrored(cluster, topic)


@pytest.mark.parametrize("replaced", [True, False])
def test_an_instance_that_lost_its_share_writes_no_verdict(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch, *, replaced: bool
) -> None:
    """It was suspended while it appended, and comes back with a fault: the owner's word stands."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, takeover=0)
    produce(cluster, topic, numbered(10))
    archive(config)
    fault = misplaced(TopicPartition(topic=topic + SUFFIX, partition=0), 9, landed=58, expected=9)

    def suspended(_: Mode, items: list[tuple[int, RestoreItem]], *more: object, **_o: object) -> list[Restored]:
        with monkeypatch.context() as owner:
            owner.setattr(Mode, "do", do)
            if replaced:
                assert only(take_in(config)).state is State.IN_STEP
        return [Restored(where=item.where, end=0, records=0, map={}, failure=fault) for _, item in items]

    do = Mode.do
    with Ingress(config) as ingress:
        monkeypatch.setattr(Mode, "do", suspended)
        found = only(ingress.run())
        monkeypatch.undo()
        told = link_status(config).partitions[0]
        if replaced:
            assert (found.state, found.why) == (State.CATCHING_UP, "another instance works on it now")
            assert told.state is State.IN_STEP
            assert only(ingress.run()).state is State.IN_STEP, "nor does it remember one"
        else:
            assert [each.state for each in (found, told, only(ingress.run()))] == [State.FAULTED] * 3


def test_a_promoted_mirror_takes_nothing_more_from_its_link(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    """Not even from an ingress that was stopped before the promotion and continues after it."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, takeover=0)
    produce_small_batches(cluster, topic, 500)
    archive(config)
    with ingress_program(config, stop_at=10) as process:
        tell(process)
        wait_until_stopped(process)
        report = promote(config)
        (partition,) = report.partitions
        assert report.fenced
        assert partition.end is not None
        assert 0 < partition.end < 500
        assert partition.lag_records == 500 - partition.end
        assert report.exit_code == 3
        end = offsets(cluster, topic + SUFFIX)[1]
        os.kill(process.pid, signal.SIGCONT)
        assert set(told(process)) == {State.FAULTED}
    assert offsets(cluster, topic + SUFFIX)[1] == end
    produce(cluster, topic + SUFFIX, numbered(1, first=9000))
    assert only(take_in(config)).state is State.PROMOTED
    assert promote(config).partitions[0].end == partition.end, "it may be repeated, and changes nothing"
    assert offsets(cluster, topic + SUFFIX)[1] == end + 1
    assert len(log_of(cluster, topic + SUFFIX)) == partition.end + 1


def test_a_promotion_that_died_after_its_marker_ends_the_mirror_at_the_same_offset(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, numbered(10))
    archive(config)
    take_in(config)
    with monkeypatch.context() as dying:
        dying.setattr("maxbrod.replicate.promote._release", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            promote(config)
    produce(cluster, topic + SUFFIX, numbered(3, first=500))
    assert promote(config).partitions[0].end == promote(config).partitions[0].end == 10
    assert offsets(cluster, topic + SUFFIX) == (0, 14), "one marker"


def raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_instance_stands_by_until_the_one_that_works_is_gone(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, takeover=3600)
    produce(cluster, topic, numbered(10))
    archive(config)
    with Ingress(config) as second:
        with Ingress(config) as first:
            assert only(first.run()).state is State.IN_STEP
            assert second.run().standby_for is not None
            assert second.run().exit_code == 3
            produce(cluster, topic, numbered(10, first=10))
            archive(config)
            assert first.run().appended == 10
        assert only(second.run()).state is State.IN_STEP, "the first one has given the lease back"


def test_an_instance_that_lost_its_lease_never_works_on(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    patient = link_config(cluster, tmp_path / "archive", topic, takeover=3600)
    hasty = link_config(cluster, tmp_path / "archive", topic, takeover=0)
    produce(cluster, topic, numbered(10))
    archive(patient)
    with Ingress(hasty) as first, Ingress(hasty) as second, Ingress(patient) as third:
        assert first.run().standby_for is None
        assert second.run().standby_for is None, "it has taken the lease"
        assert third.run().standby_for is not None
        with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
            link = Link(name=str(patient.replicate.link))
            monkeypatch.setattr(LinkLease, "_look", lambda _: NOBODY)
            lease = LinkLease(client, link, takeover_s=3600, patience_s=60)
            assert lease.hold()
            assert LinkLease(client, link, takeover_s=3600, patience_s=60).hold(), "it saw no holder"
            assert not lease._commit(lease.instance), "its transactional id belongs to another"


def test_instances_divide_a_link_and_none_ever_doubles_or_loses_a_record(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    """Three processes. One is killed in the middle of its work; one is stopped there, replaced, and continued."""
    create_topic(cluster, topic, partitions=6)
    config = link_config(cluster, tmp_path / "archive", topic, takeover=4)
    archive(config)
    with (
        ingress_program(config, stop_at=_NEVER) as steady,
        ingress_program(config, stop_at=5) as sleeping,
        ingress_program(config, stop_at=5) as dying,
    ):
        _run_until([steady, sleeping, dying], [2, 2, 2])
        _produce_everywhere(cluster, topic, first=0)
        archive(config)
        for each in (sleeping, dying):
            tell(each)
            wait_until_stopped(each)
        dying.kill()
        _run_until([steady], [6])
        _produce_everywhere(cluster, topic, first=600)
        archive(config)
        _run_until([steady], [6])
        os.kill(sleeping.pid, signal.SIGCONT)
        assert set(told(sleeping)) <= {State.CATCHING_UP, State.IN_STEP}, "brokers refused what it sent"
        _run_until([steady, sleeping], [3, 3])
        _produce_everywhere(cluster, topic, first=1200)
        archive(config)
        _run_until([steady, sleeping], [3, 3])
    for partition in range(6):
        assert_mirrored(cluster, topic, partition)


def _run_until(processes: list[subprocess.Popen[str]], in_step: list[int]) -> None:
    """Run intervals of all until each has this many partitions, and all of them are in step."""

    def reached() -> bool:
        for each in processes:
            tell(each)
        return [told(each) for each in processes] == [{State.IN_STEP: count} for count in in_step]

    wait_for("even shares that are in step", reached, timeout_s=120)


def _produce_everywhere(cluster: Cluster, topic: str, *, first: int) -> None:
    for partition in range(6):
        produce(cluster, topic, numbered(100, first=first + 100 * partition), partition=partition, batch_size=400)

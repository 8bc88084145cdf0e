"""A destination that is down, full or slow for a while: ingress says so, goes on by itself, and ends equal."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import Config, KafkaConfig
from maxbrod.errors import UnavailableError
from maxbrod.kafka.admin import set_quotas
from maxbrod.kafka.produce.lane import Lane
from maxbrod.kafka.state.cluster_state import Quota, QuotaEntity
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.connection import Connection
from maxbrod.replicate.ingress.run import IngressInterval, follow_archive
from maxbrod.replicate.link import State
from maxbrod.replicate.status import link_status
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, wait_for_in_sync
from maxbrod.sandbox.traffic import Message, numbered, produce, produce_transaction
from support.replications import SUFFIX, archive, link_config, only, take_in
from support.restore_oracle import log_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.kafka.wire.deadline import Deadline
    from maxbrod.sandbox.cluster import Cluster


@pytest.mark.full
@pytest.mark.parametrize("mode", ["exact", "append"])
def test_a_destination_that_is_down_or_lacks_replicas_is_waited_for(
    cluster3: Cluster, tmp_path: Path, topic: str, mode: str
) -> None:
    """The broker that has one mirror alone, and the second replica of the other, is stopped and started again."""
    alone, paired = f"{topic}-alone", f"{topic}-paired"
    for name, holders in ((alone, [3]), (paired, [2, 3])):
        settings = {"min.insync.replicas": str(len(holders))}
        create_topic(cluster3, name, config=settings)
        create_topic(cluster3, name + SUFFIX, assignments={0: holders}, config=settings)
        produce(cluster3, name, numbered(100))
    config = link_config(cluster3, tmp_path / "archive", alone, paired, offsets=mode, every=0.2, takeover=0)
    archive(config)
    take_in(config)
    for name in (alone, paired):
        produce(cluster3, name, numbered(100, first=100))
    archive(config)
    cluster3.stop(3)
    try:
        wait_for_in_sync(cluster3, paired + SUFFIX, {2})
        shown = {each.source: each for each in link_status(config).partitions}
        assert shown[paired].end == 100
        if mode == "exact":
            assert (shown[alone].state, shown[alone].end, shown[alone].lag_records) == (State.UNKNOWN, None, None)
        with _following(config.model_copy(update={"patience": 4.0})) as seen:
            wait_for("trouble that is told", lambda: any(map(_is_trouble, seen)), timeout_s=120)
            cluster3.restart(3)
            wait_for("an interval in step", lambda: _in_step(seen[-1:], 2), timeout_s=240)
    finally:
        if 3 not in cluster3.running:
            cluster3.restart(3)
        cluster3.wait_until_settled()
        wait_for_in_sync(cluster3, paired + SUFFIX, {2, 3})
    for name, holder in ((alone, 3), (paired, 2)):
        values = [each.value for each in log_of(cluster3, name + SUFFIX, broker=holder).values()]
        assert values == [b"value-%d" % number for number in range(200)]


def test_a_hole_whose_answers_were_lost_never_keeps_later_ones_from_being_filled(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by 'kill -9' of a broker. Markers of each interval, and of a new process, have a higher epoch than before."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    receive, lost = Lane.receive, list[bool]()

    def receive_or_lose(lane: Lane, deadline: Deadline) -> Any:
        if lane.flights[0].counts and not lost:
            lost.append(True)
            raise UnavailableError("the connection is lost", object_name="a broker")
        return receive(lane, deadline)

    for number in range(3):
        messages = numbered(5, first=number * 5)
        # A hole of six offsets at first. The answer for the first of them is lost, and the others get a higher epoch.
        produce_transaction(cluster, topic, messages, transactional_id=f"{topic}-{number}", commit=number > 0)
        archive(config)
        monkeypatch.setattr(Lane, "receive", receive_or_lose)
        assert only(take_in(config)).state is State.IN_STEP
    assert lost
    assert list(log_of(cluster, topic + SUFFIX)) == [*range(6, 11), *range(12, 17)]


def test_a_destination_that_throttles_is_written_to_at_its_pace(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttled = list[int]()
    throttle = Connection.throttle

    def noted(connection: Connection, milliseconds: int) -> None:
        throttled.append(milliseconds)
        throttle(connection, milliseconds)

    monkeypatch.setattr(Connection, "throttle", noted)
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    # Four large batches, which are sent one by one; brokers count what came in ten seconds.
    produce(cluster, topic, [Message(value=bytes([number % 251]) * 1000) for number in range(1200)], batch_size=300_000)
    archive(config)
    _limit(cluster, 80_000)
    try:
        report = take_in(config)
    finally:
        _limit(cluster, 1e12)
    assert max(throttled) > 0
    assert (only(report).state, only(report).end) == (State.IN_STEP, 1200)
    assert log_of(cluster, topic + SUFFIX) == log_of(cluster, topic)


@contextmanager
def _following(config: Config) -> Iterator[list[IngressInterval]]:
    """An ingress that follows in a thread, and its intervals so far."""
    stop, seen = threading.Event(), list[IngressInterval]()
    options = {"stop": stop, "on_interval": seen.append}
    thread = threading.Thread(target=follow_archive, args=(config,), kwargs=options)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def _is_trouble(interval: IngressInterval) -> bool:
    """It says what is wrong, and that it is tried again."""
    if interval.error is not None:
        return interval.error.retryable
    partitions = () if interval.report is None else interval.report.partitions
    assert State.FAULTED not in {each.state for each in partitions}, partitions
    return any(each.state in {State.CATCHING_UP, State.UNKNOWN} and each.why for each in partitions)


def _in_step(intervals: list[IngressInterval], count: int) -> bool:
    reports = [each.report for each in intervals if each.report is not None]
    return any(each.states == {State.IN_STEP: count} for each in reports)


def _limit(cluster: Cluster, bytes_per_s: float) -> None:
    quota = Quota(entities=(QuotaEntity(type="client-id", name="maxbrod"),), values={"producer_byte_rate": bytes_per_s})
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        assert all(each.done for each in set_quotas(client, [quota]).values())

"""Ingress that appends to topics that others write to: exactly once, in order, without loops."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.batch.provenance import ORIGIN
from maxbrod.errors import UnavailableError
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.replicate import promote as promote_module
from maxbrod.replicate.ingress import append_task
from maxbrod.replicate.ingress import groups as groups_module
from maxbrod.replicate.ingress.positions import stable_extent, take_position
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import Link, State
from maxbrod.replicate.promote import promote
from maxbrod.replicate.shares import Lease, Shares
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, recreate_topic
from maxbrod.sandbox.traffic import Message, numbered, open_transaction, produce, produce_transaction
from support.replications import (
    SUFFIX,
    LinkCommand,
    archive,
    carry,
    committed,
    ingress_program,
    link_config,
    mark_of,
    only,
    produce_small_batches,
    take_in,
    tell,
    told,
    wait_until_stopped,
)
from support.restore_oracle import log_of
from support.restores import configs_of, put, stand
from support.sparkless import stay_without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

_GZIP: dict[str, Any] = {"compression_type": "gzip"}
"""Batches that come compressed are archived as they are, so that few bytes can be read at once."""


def test_records_join_those_of_others_once_in_order_and_unchanged(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sources and a producer at the destination, which keeps its topic's configuration.

    Work travels as it does to the workers of Spark.
    """
    stay_without_spark(monkeypatch)
    other = f"{topic}-other"
    create_topic(cluster, topic)
    create_topic(cluster, other)
    create_topic(cluster, topic + SUFFIX, partitions=2, config={"retention.ms": "1234567890"})
    first = link_config(cluster, tmp_path / "first", topic, offsets="append")
    into = (f"{other}={topic}{SUFFIX}",)
    second = link_config(cluster, tmp_path / "second", other, offsets="append", rename=into)
    special = Message(key=None, value=b"", headers=(("h", b"1"), ("h", b"2")), timestamp_ms=12345)
    produce(cluster, topic, [*numbered(9), special])
    produce(cluster, topic + SUFFIX, numbered(3, first=1000))
    assert carry(first).appended == 10
    produce(cluster, other, numbered(5, first=500))
    assert carry(second).appended == 5
    produce_transaction(cluster, topic, numbered(5, first=100), transactional_id=topic, commit=False)
    produce(cluster, topic, numbered(5, first=20))
    report = carry(first)
    assert (only(report).state, only(report).end, only(report).lag_records) == (State.IN_STEP, 21, 0)
    assert take_in(first).appended == take_in(second).appended == 0
    assert _numbers(cluster, topic + SUFFIX) == [*range(1000, 1003), *range(9), -1, *range(500, 505), *range(20, 25)]
    found = next(each for each in log_of(cluster, topic + SUFFIX).values() if each.value == b"")
    assert (found.key, found.timestamp_ms, found.headers[:2]) == (None, 12345, ((b"h", b"1"), (b"h", b"2")))
    assert configs_of(cluster, topic + SUFFIX) == {"retention.ms": "1234567890"}


def test_both_directions_between_two_shared_topics_never_loop(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    other = topic + SUFFIX
    there = link_config(cluster, tmp_path / "there", topic, offsets="append")
    back = link_config(cluster, tmp_path / "back", other, offsets="append", rename=(f"{other}={topic}",))
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))
    for number in range(2):
        carry(there)
        produce(cluster, other, numbered(1, first=500 + number))
        report = carry(back)
    assert only(report).state is State.IN_STEP
    assert carry(there).appended == carry(back).appended == 0
    assert sorted(_numbers(cluster, topic)) == sorted(_numbers(cluster, other)) == [*range(10), 500, 501]
    named = [name for each in log_of(cluster, topic).values() for name, _ in each.headers]
    assert named.count(ORIGIN.encode()) == 2, "only those from the other side"


def test_a_chain_of_links_that_append_has_every_record_once_and_in_order(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    """Each topic has a producer of its own, and what comes through the chain stands among its records."""
    first, second, third = topic, topic + SUFFIX, topic + SUFFIX + SUFFIX
    create_topic(cluster, first)
    one = link_config(cluster, tmp_path / "one", first, offsets="append")
    two = link_config(cluster, tmp_path / "two", second, offsets="append")
    back = link_config(cluster, tmp_path / "back", third, offsets="append", rename=(f"{third}={first}",))
    for number in range(2):
        produce(cluster, first, numbered(10, first=100 * number))
        produce_transaction(cluster, first, numbered(5), transactional_id=topic, commit=False)
        carry(one)
        produce(cluster, second, numbered(1, first=1000 + number))
        carry(two)
        assert take_in(one).appended == take_in(two).appended == 0
    wanted = [*range(10), 1000, *range(100, 110), 1001]
    assert committed(cluster, second) == committed(cluster, third) == wanted
    assert carry(back).appended == 2, "only what the first topic has not had"
    assert [each for each in committed(cluster, first) if each >= 1000] == [1000, 1001]
    assert carry(one).appended == carry(two).appended == 0, "it never circles"


def test_promoting_a_partition_that_a_running_ingress_takes_back_ends_it_all_the_same(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append")
    produce(cluster, topic, numbered(10))
    carry(config)
    times_left = promote_module._ATTEMPTS

    def take_back(client: KafkaClient, where: TopicPartition, **more: Any) -> tuple[int, int]:
        """As an ingress does that has read its orders before the one to promote was given."""
        nonlocal times_left
        if times_left > 0:
            times_left -= 1
            take_position(client, Link(name=f"link-{topic}"), (topic, where), joined=False, patience_s=60)
        return stable_extent(client, where, **more)

    monkeypatch.setattr(promote_module, "stable_extent", take_back)
    with pytest.raises(UnavailableError, match="again and again") as refused:
        promote(config)
    assert "run the same command again" in (refused.value.hint or "")
    times_left = 2
    report = promote(config)
    assert (report.fenced, report.missing, report.partitions[0].end) == (True, 0, 10)
    assert mark_of(config, topic).state is State.PROMOTED
    assert only(take_in(config)).state is State.PROMOTED


def test_two_racing_instances_append_every_record_once(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease would keep one of them from working, so both do without."""
    monkeypatch.setattr(Lease, "hold", lambda _: True)
    monkeypatch.setattr(Shares, "keeps", lambda _, partitions: set(partitions))
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append")
    produce_small_batches(cluster, topic, 600, **_GZIP)
    archive(config)
    with ingress_program(config, "without lease", stop_at=0) as process, Ingress(config) as other:
        states = set[str]()
        while states != {State.IN_STEP}:
            tell(process)
            mine = other.run()
            states = {*told(process), *mine.states}
            assert states <= {State.CATCHING_UP, State.IN_STEP}, mine
    assert committed(cluster, topic + SUFFIX) == list(range(600))


def test_an_instance_that_is_killed_or_wakes_up_late_neither_loses_nor_doubles(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    """Killed in the middle of a transaction, then stopped there while another one takes over and goes on."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append", takeover=0)
    produce_small_batches(cluster, topic, 600, **_GZIP)
    archive(config)
    with ingress_program(config, stop_at=12) as process:
        tell(process)
        wait_until_stopped(process)
        process.kill()
    with ingress_program(config, stop_at=12) as process:
        tell(process)
        wait_until_stopped(process)
        assert 0 < len(committed(cluster, topic + SUFFIX)) < 600
        assert only(take_in(config)).state is State.IN_STEP
        produce(cluster, topic, numbered(100, first=600))
        archive(config)
        take_in(config)
        os.kill(process.pid, signal.SIGCONT)
        assert set(told(process)) == {State.CATCHING_UP}, "the brokers refused what it sent"
        tell(process)
        assert set(told(process)) == {State.IN_STEP}
    assert committed(cluster, topic + SUFFIX) == list(range(700))


def test_instances_divide_the_partitions_of_a_link_that_appends(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic, partitions=2)
    # The leader looks for others five times in this time.
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append", takeover=20)
    patience = time.monotonic() + 120
    with Ingress(config) as first, Ingress(config) as second:
        for number in count():
            produce(cluster, topic, numbered(10, first=number * 10))
            produce(cluster, topic, numbered(10, first=number * 10), partition=1)
            archive(config)
            shares = [len(each.run().partitions) for each in (first, second)]
            if (shares == [1, 1] and number > 2) or time.monotonic() > patience:
                break
    assert shares == [1, 1]
    assert {each.state for each in take_in(config).partitions} == {State.IN_STEP}
    for partition in range(2):
        assert committed(cluster, topic + SUFFIX, partition) == list(range((number + 1) * 10))


def test_a_transaction_of_the_source_is_whole_at_the_destination(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_task, "_READ_BYTES", 500)
    monkeypatch.setattr(append_task, "_TRANSACTION_BYTES", 1)
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append")
    produce_small_batches(cluster, topic, 60, **_GZIP)
    large = [Message(value=os.urandom(200)) for _ in range(200)]
    produce_transaction(cluster, topic, large, transactional_id=topic)
    produce_small_batches(cluster, topic, 60, first=60, **_GZIP)
    carry(config)
    places = list(log_of(cluster, topic + SUFFIX))
    sizes = [1]
    for before, after in pairwise(places):
        if after == before + 1:
            sizes[-1] += 1
        else:
            sizes.append(1)  # a marker between them
    assert len(sizes) > 3
    assert max(sizes) >= 200, sizes


def test_a_link_that_brokers_have_forgotten_continues_behind_its_own_records(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append")
    produce(cluster, topic, numbered(10))
    carry(config)
    produce(cluster, topic + SUFFIX, numbered(2, first=500))
    produce(cluster, topic, numbered(5, first=10))
    with cluster.admin() as admin:
        admin.delete_groups([Link(name=f"link-{topic}").group_id])
    assert carry(config).appended == 5
    assert _numbers(cluster, topic + SUFFIX) == [*range(10), 500, 501, *range(10, 15)]


def test_a_source_that_was_created_again_or_truncated_is_never_continued(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append")
    produce(cluster, topic, numbered(10))
    carry(config)
    mark = mark_of(config, topic)
    assert mark.append is not None
    assert (mark.append.last, mark.append.leader_epoch) == (9, 0)
    produce(cluster, topic, numbered(10, first=10))
    archive(config)
    mark_of(config, topic, replace(mark, append=replace(mark.append, leader_epoch=7)))
    report = take_in(config)
    assert (only(report).state, report.exit_code) == (State.FAULTED, 5)
    assert "truncated" in (only(report).why or "")
    mark_of(config, topic, replace(mark, next_offset=500))
    assert "truncated" in (only(take_in(config)).why or "")
    mark_of(config, topic, replace(mark, append=replace(mark.append, end=500)))
    assert "lost records" in (only(take_in(config)).why or "")
    mark_of(config, topic, mark)
    exact = config.model_copy(update={"replicate": replace(config.replicate, offsets="exact")})
    assert "--offsets append" in (only(take_in(exact)).why or "")
    recreate_topic(cluster, topic)
    produce(cluster, topic, numbered(30, first=1000))
    assert "created again" in (only(carry(config)).why or "")
    assert _numbers(cluster, topic + SUFFIX) == list(range(10))


def test_groups_resume_at_the_first_record_that_they_have_not_processed(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    group = f"group-{topic}"
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append", groups=(group,))
    produce(cluster, topic, numbered(10))
    put(cluster, group, {(topic, 0): 4})
    carry(config)
    assert stand(cluster, group)[topic + SUFFIX, 0] == 4
    produce(cluster, topic, numbered(10, first=10))
    put(cluster, group, {(topic, 0): 15})
    carry(config)
    assert log_of(cluster, topic + SUFFIX)[stand(cluster, group)[topic + SUFFIX, 0]].value == b"value-15"
    produce(cluster, topic + SUFFIX, numbered(1, first=500))
    produce(cluster, topic, numbered(10, first=20))
    put(cluster, group, {(topic, 0): 30})
    carry(config)
    at = stand(cluster, group)[topic + SUFFIX, 0]
    assert log_of(cluster, topic + SUFFIX)[at].value == b"value-500", "what others wrote is not skipped"
    put(cluster, group, {(topic + SUFFIX, 0): at + 1})
    archive(config)
    take_in(config)
    assert stand(cluster, group)[topic + SUFFIX, 0] > max(log_of(cluster, topic + SUFFIX))


def test_a_group_waits_for_records_that_it_has_processed_and_is_not_started_at_the_beginning(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    """A transaction of somebody else hides what the link has brought. Nothing new is archived meanwhile."""
    group = f"group-{topic}"
    create_topic(cluster, topic)
    create_topic(cluster, topic + SUFFIX)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append", groups=(group,))
    produce(cluster, topic, numbered(10))
    put(cluster, group, {(topic, 0): 4})
    archive(config)
    with Ingress(config) as ingress:
        with open_transaction(cluster, topic + SUFFIX, numbered(1, first=500), transactional_id=topic):
            assert only(ingress.run()).state is State.IN_STEP
            assert (topic + SUFFIX, 0) not in stand(cluster, group)
        wait_for("the group to move", lambda: ingress.run().groups == 1, timeout_s=60)
    assert log_of(cluster, topic + SUFFIX)[stand(cluster, group)[topic + SUFFIX, 0]].value == b"value-4"


def test_groups_move_once_the_markers_of_the_links_own_transactions_are_there(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator says that a transaction is committed before its markers are written."""
    group = f"group-{topic}"
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append", groups=(group,))
    produce(cluster, topic, numbered(10))
    put(cluster, group, {(topic, 0): 4})
    late = iter([(0, 0), (0, 0)])
    monkeypatch.setattr(
        groups_module, "stable_extent", lambda *where, **more: next(late, None) or stable_extent(*where, **more)
    )
    carry(config)
    assert stand(cluster, group)[topic + SUFFIX, 0] == 4


def test_a_long_way_of_a_group_is_gone_without_news_and_by_a_promotion(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_module, "_WALK_BYTES", 0)
    monkeypatch.setattr(append_task, "_READ_BYTES", 500)
    monkeypatch.setattr(append_task, "_TRANSACTION_BYTES", 1)
    group = f"group-{topic}"
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append", groups=(group,))
    produce_small_batches(cluster, topic, 60, **_GZIP)
    put(cluster, group, {(topic, 0): 60})
    archive(config)
    read_brought = groups_module.read_brought  # type: ignore[attr-defined]

    def read_some(client: KafkaClient, where: TopicPartition, extent: tuple[int, int], *more: Any, **other: Any) -> Any:
        """So that one read does not reach the end."""
        return read_brought(client, where, (extent[0], min(extent[0] + 10, extent[1])), *more, **other)

    monkeypatch.setattr(groups_module, "read_brought", read_some)
    with Ingress(config) as ingress:
        ingress.run()
        first = stand(cluster, group)[topic + SUFFIX, 0]
        ingress.run()
        second = stand(cluster, group)[topic + SUFFIX, 0]
    promote(config)
    assert 0 < first < second < stand(cluster, group)[topic + SUFFIX, 0]
    assert stand(cluster, group)[topic + SUFFIX, 0] > max(log_of(cluster, topic + SUFFIX))


def test_a_group_is_not_set_back_while_not_every_broker_lists_its_groups(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = f"group-{topic}"
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append", groups=(group,))
    produce(cluster, topic, numbered(10))
    put(cluster, group, {(topic, 0): 4})
    carry(config)
    put(cluster, group, {(topic + SUFFIX, 0): 8})
    listing = groups_module.list_groups  # type: ignore[attr-defined]
    with Ingress(config) as ingress:
        monkeypatch.setattr(groups_module, "list_groups", lambda *_, **__: ({}, "broker 2 does not answer"))
        assert ingress.run().groups == 0
        with pytest.raises(UnavailableError, match="broker 2"):
            promote(config)
        assert stand(cluster, group)[topic + SUFFIX, 0] == 8
        monkeypatch.setattr(groups_module, "list_groups", listing)
    promote(config)
    assert stand(cluster, group)[topic + SUFFIX, 0] == 8


def test_a_link_that_appends_is_watched_paused_and_promoted(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append", takeover=0)
    command = LinkCommand(cluster, tmp_path / "archive", capsys, topic)
    produce(cluster, topic, numbered(10))
    carry(config)
    assert command.json("replicate", "pause")["topics"] == [topic + SUFFIX]
    produce_small_batches(cluster, topic, 300, first=10, **_GZIP)
    report = carry(config)
    assert (only(report).state, only(report).end, report.appended) == (State.PAUSED, 10, 0)
    assert command.json("replicate", "status")["states"] == {"paused": 1}
    command("replicate", "resume")
    with ingress_program(config, stop_at=15) as process:
        tell(process)
        wait_until_stopped(process)
        (found,) = command.json("replicate", "status")["partitions"]
        assert found["state"] == "catching up"
        assert 10 < found["end"] < 310 == found["end"] + found["lag_records"]
        promoted = command.json("replicate", "promote", exits=3)
        assert (promoted["fenced"], promoted["missing"]) == (True, found["lag_records"])
        os.kill(process.pid, signal.SIGCONT)
        assert set(told(process)) <= {State.CATCHING_UP, State.FAULTED}
    assert command.json("replicate", "promote", exits=3)["partitions"][0]["end"] == found["end"], "it may be repeated"
    assert only(take_in(config)).state is State.PROMOTED
    assert committed(cluster, topic + SUFFIX) == list(range(found["end"]))
    command("replicate", "resume", exits=5)


def _numbers(cluster: Cluster, topic: str) -> list[int]:
    """The numbers in the values of a topic's records, in order, whether committed or not; -1: an empty value."""
    return [int(each.value[6:]) if each.value else -1 for each in log_of(cluster, topic).values()]

"""What ingress appends, decided from rows and log ends alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.renames import parse_rename
from maxbrod.catalog.rows import Gap, Segment, encode_rows
from maxbrod.errors import CorruptDataError, UnavailableError, UsageError
from maxbrod.kafka.state.cluster_state import CommittedOffset, Group, TopicState
from maxbrod.model import GapReason, PartitionId, TopicPartition
from maxbrod.replicate.ingress import groups as groups_module
from maxbrod.replicate.ingress.plan import (
    choose_mirrors,
    measure_portions,
    plan_mirror_configs,
    plan_portions,
    why_longer,
)
from maxbrod.restore.plan.targets import LogExtent

if TYPE_CHECKING:
    from maxbrod.groups.plan import GroupMove
    from maxbrod.kafka.wire.deadline import Deadline

ID = "AAAAAAAAAAAAAAAAAAAAAQ"
ONE = PartitionId(topic_id=ID, partition=0)


def _data(base: int, end: int) -> Segment:
    return Segment(
        topic="orders",
        topic_id=ID,
        partition=0,
        base_offset=base,
        end_offset=end,
        path=f"segments/{base}",
        position=0,
        bytes=100,
        raw_bytes=100,
        codec="none",
        records=end - base,
        min_timestamp=0,
        max_timestamp=0,
        first_leader_epoch=0,
        last_leader_epoch=0,
        digest="x",
        run_id="r",
        written_at=0,
    )


def _gap(base: int, end: int, reason: GapReason) -> Gap:
    return Gap(
        topic="orders",
        topic_id=ID,
        partition=0,
        base_offset=base,
        end_offset=end,
        reason=reason,
        run_id="r",
        written_at=0,
    )


def _topic(name: str, topic_id: str = ID, **configs: str) -> TopicState:
    own = {"cleanup.policy": "delete", **{key.replace("_", "."): value for key, value in configs.items()}}
    return TopicState(name=name, topic_id=topic_id, internal=False, replicas=((1, 2, 3),), configs=own, effective=own)


def test_the_slice_that_ends_at_the_log_end_is_read_to_compare_it() -> None:
    rows = encode_rows([_data(0, 10), _data(10, 20), _data(20, 30)])
    portion = plan_portions(rows, {ONE: (20, 30)}, accept_gaps=False)[ONE]
    assert [each.base_offset for each in portion.slices] == [10, 20]
    assert (portion.end, portion.records, portion.bytes, portion.lost) == (30, 10, 100, None)


@pytest.mark.parametrize("reason", [GapReason.COMPACTED, GapReason.RETENTION, GapReason.PRUNED, GapReason.DELETED])
def test_gaps_with_a_reason_never_stop_a_mirror(reason: GapReason) -> None:
    rows = encode_rows([_data(0, 10), _gap(10, 20, reason), _data(20, 30)])
    portion = plan_portions(rows, {ONE: (5, 30)}, accept_gaps=False)[ONE]
    assert (portion.end, portion.lost) == (30, None)


@pytest.mark.parametrize("reason", [GapReason.CORRUPT, GapReason.UNEXPLAINED, None])
def test_nothing_behind_a_lost_range_is_appended_unless_gaps_are_accepted(reason: GapReason | None) -> None:
    lost = [] if reason is None else [_gap(10, 20, reason)]
    rows = encode_rows([_data(0, 10), *lost, _data(20, 30)])
    portion = plan_portions(rows, {ONE: (5, 30)}, accept_gaps=False)[ONE]
    assert portion.end == 10
    assert portion.lost is not None
    assert portion.lost[:2] == (10, 20)
    assert [each.base_offset for each in portion.slices] == [0]
    accepted = plan_portions(rows, {ONE: (5, 30)}, accept_gaps=True)[ONE]
    assert (accepted.end, accepted.lost, len(accepted.slices)) == (30, None, 2)


@pytest.mark.parametrize(("position", "pruned"), [(0, ((10, 20),)), (15, ((15, 20),)), (20, ())])
def test_pruned_offsets_are_named_by_the_interval_that_makes_holes_of_them(
    position: int, pruned: tuple[tuple[int, int], ...]
) -> None:
    rows = encode_rows([_data(0, 10), _gap(10, 20, GapReason.PRUNED), _data(20, 30)])
    assert plan_portions(rows, {ONE: (position, 30)}, accept_gaps=False)[ONE].pruned == pruned


def test_pruned_offsets_behind_a_lost_range_are_not_named_yet() -> None:
    rows = encode_rows([_gap(0, 10, GapReason.CORRUPT), _gap(10, 20, GapReason.PRUNED), _data(20, 30)])
    assert plan_portions(rows, {ONE: (0, 30)}, accept_gaps=False)[ONE].pruned == ()


@pytest.mark.parametrize("position", [0, 5, 10, 20, 25])
def test_status_counts_the_bytes_that_ingress_would_append(position: int) -> None:
    rows = encode_rows([_data(0, 10), _gap(10, 20, GapReason.CORRUPT), _data(20, 30)])
    portion = plan_portions(rows, {ONE: (position, 30)}, accept_gaps=True)[ONE]
    assert measure_portions(rows, {ONE: (position, 30)}) == {ONE: portion.bytes}


def test_a_lost_range_that_the_mirror_has_passed_does_not_matter() -> None:
    rows = encode_rows([_data(0, 10), _gap(10, 20, GapReason.CORRUPT), _data(20, 30)])
    assert plan_portions(rows, {ONE: (20, 30)}, accept_gaps=False)[ONE].end == 30


def test_offsets_that_two_rows_cover_are_refused() -> None:
    rows = encode_rows([_data(0, 10), _data(5, 20)])
    with pytest.raises(CorruptDataError, match="cover the same"):
        plan_portions(rows, {ONE: (0, 20)}, accept_gaps=False)


def test_two_topics_are_never_mirrored_to_one_but_may_be_appended_to_one() -> None:
    topics = [_topic("a"), _topic("b", "B")]
    rename = parse_rename(["a=c", "b=c"])
    with pytest.raises(UsageError, match="two topics") as refused:
        choose_mirrors(topics, (), {ID, "B"}, include=(), exclude=(), rename=rename)
    assert "--offsets append" in (refused.value.hint or "")
    joined = choose_mirrors(topics, (), {ID, "B"}, include=(), exclude=(), rename=rename, join=True)
    assert [(each.source.name, each.name, each.joined) for each in joined] == [("a", "c", True), ("b", "c", True)]


def test_of_a_recreated_topic_the_living_one_is_mirrored() -> None:
    topics = [_topic("a", "OLD"), _topic("a", "NEW")]
    for order in (topics, topics[::-1]):
        (mirror,) = choose_mirrors(
            order, {"OLD"}, {"OLD", "NEW"}, include=(), exclude=(), rename=parse_rename([], prefix="eu.")
        )
        assert (mirror.name, mirror.source.topic_id, mirror.gone) == ("eu.a", "NEW", False)


def test_a_linked_mirror_keeps_records_and_a_promoted_one_has_the_sources_settings() -> None:
    topic = _topic("a", cleanup_policy="compact,delete", retention_ms="1000", min_insync_replicas="3")
    planned = plan_mirror_configs(topic, {}, replication_factor=1)
    assert planned.linked["cleanup.policy"] == "compact,delete"
    assert planned.linked["retention.ms"] == planned.linked["retention.bytes"] == "-1"
    assert planned.linked["min.insync.replicas"] == "1"
    assert planned.release.set["retention.ms"] == "1000"
    assert "retention.bytes" in planned.release.delete


def test_a_mirror_that_is_longer_than_the_archive_is_never_appended_to() -> None:
    """A truncated source, or a foreign writer: a stale catalog has been ruled out before."""
    assert why_longer(10, 10) is None
    assert why_longer(9, 10) is None
    assert "truncated" in (why_longer(11, 10) or "")


@pytest.mark.parametrize(("end", "last", "carried"), [(0, False, []), (0, True, [0]), (2, False, [2]), (9, False, [4])])
def test_a_group_is_not_started_in_a_mirror_that_has_no_record_yet(
    monkeypatch: pytest.MonkeyPatch, end: int, last: bool, carried: list[int]
) -> None:
    offset = CommittedOffset(topic="orders", topic_id=ID, partition=0, offset=4, leader_epoch=-1, metadata="")
    group = Group(group_id="g", type="classic", state="empty", protocol_type="consumer", offsets=(offset,))
    source: Any = SimpleNamespace(source=SimpleNamespace(name="orders", topic_id=ID))
    logs = {TopicPartition(topic="orders", partition=0): (source, LogExtent(start=0, end=end))}
    committed: list[int | None] = []

    def commit(_: object, moves: list[GroupMove], *__: object, **___: object) -> int:
        committed.extend(each.offset for each in moves)
        return len(moves)

    monkeypatch.setattr(groups_module, "_standing", lambda *_: {"g": {}})
    monkeypatch.setattr(groups_module, "_commit", commit)
    client: Any = None
    groups_module.carry_groups(client, [group], ["g"], logs, patience_s=1, last=last)
    assert committed == carried


def test_the_markers_of_all_partitions_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each partition anew: an interval with many of them would never end."""
    wheres = [TopicPartition(topic="orders", partition=number) for number in range(3)]
    source = SimpleNamespace(end=5, next_offset=5, up_to={"g": 5}, topic_id=ID)
    limits = set()

    def given_up(*_: object, deadline: Deadline, **__: object) -> None:
        limits.add(deadline.at)
        raise UnavailableError("the last transaction has no marker yet")

    monkeypatch.setattr(groups_module, "retry", given_up)
    monkeypatch.setattr(groups_module, "stable_extent", lambda *_, **__: (0, 0))
    monkeypatch.setattr(groups_module, "_processed", lambda *_: {where: [source] for where in wheres})
    monkeypatch.setattr(groups_module, "_walked", lambda *_, **__: ({"g": 0}, {"g"}))
    monkeypatch.setattr(groups_module, "_standing", lambda *_: {"g": {}})
    client: Any = SimpleNamespace(stop=None)
    link: Any = None
    found = groups_module.carry_appended_groups(client, link, [], [], [], patience_s=60)
    assert (found, len(limits)) == ((0, False), 1)

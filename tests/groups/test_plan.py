"""Groups continue at exactly the first record that they have not processed; if that is impossible, before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.groups.plan import ExactLog, GroupMove, Move, RestoredTopic, lacking_groups, translate_groups
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.mapping import OffsetMap, RecordShare, build_map, find_position
from maxbrod.restore.repartition.extents import interleave
from support.catalog_rows import TOPIC_ID
from support.restore_plans import group

if TYPE_CHECKING:
    from collections.abc import Mapping


def restored(log: ExactLog | OffsetMap, **changes: Any) -> dict[str, RestoredTopic]:
    return {"orders": RestoredTopic(topic_id=TOPIC_ID, target="back", logs={0: log}, **changes)}


def move(log: ExactLog | OffsetMap, offset: int) -> tuple[int | None, Move]:
    (found,) = translate_groups([group("g", ("orders", 0, offset))], restored(log))
    assert (found.where, found.metadata) == (TopicPartition(topic="back", partition=0), "note")
    return found.offset, found.move


@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        (5, (10, Move.NEXT)),
        (10, (10, Move.SAME)),
        (15, (15, Move.SAME)),
        (20, (20, Move.SAME)),
        (25, (20, Move.END)),
    ],
)
def test_where_offsets_are_exact_a_group_stays_within_what_was_restored(
    committed: int, expected: tuple[int, Move]
) -> None:
    assert move(ExactLog(start=10, end=20), committed) == expected


@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        (5, (100, Move.NEXT)),
        (10, (100, Move.SAME)),
        (12, (102, Move.SAME)),
        (13, (103, Move.NEXT)),
        (15, (103, Move.SAME)),
        (17, (105, Move.SAME)),
        (30, (105, Move.END)),
    ],
)
def test_where_records_were_appended_a_group_follows_its_record(committed: int, expected: tuple[int, Move]) -> None:
    log = build_map([10, 15], [3, 2], [100, 103], base=100)
    assert move(log, committed) == expected


def test_a_group_of_a_partition_without_records_goes_on_at_what_comes_next() -> None:
    assert move(build_map([], [], [], base=7), 55) == (7, Move.END)


def skipped(found: tuple[GroupMove, ...]) -> list[str | None]:
    assert all(each.offset is None and each.move is Move.SKIPPED for each in found)
    return [each.why for each in found]


def test_what_is_not_restored_is_told_and_never_committed() -> None:
    topics = restored(ExactLog(start=0, end=9))
    groups = [
        group("a", ("users", 0, 5)),
        group("b", ("orders", 1, 5)),
        group("c", ("orders", 0, 5), topic_id="another"),
    ]
    assert skipped(translate_groups(groups, topics)) == [
        "its topic is not restored",
        "its partition is not restored",
        "it was committed for another topic of the same name",
    ]


def test_a_group_whose_topic_id_nobody_knew_is_taken_by_its_name() -> None:
    (found,) = translate_groups([group("g", ("orders", 0, 5), topic_id=None)], restored(ExactLog(start=0, end=9)))
    assert found.offset == 5


def test_groups_that_could_not_be_read_are_named() -> None:
    unread = group("g", offsets=None)
    assert translate_groups([unread], {}) == ()
    for patterns in (["g"], ["*"]):
        assert [each.group for each in lacking_groups(patterns, [unread], placed=())] == ["g"]


@st.composite
def repartitioned(draw: st.DrawFn) -> tuple[dict[int, list[tuple[int, RecordShare]]], dict[int, int]]:
    """Target partition to its records (source partition, source offset) by way of shares, and a group's offsets."""
    extents = []
    for partition in range(draw(st.integers(1, 3))):
        offset = draw(st.integers(0, 5))
        for _ in range(draw(st.integers(0, 4))):
            length = draw(st.integers(1, 5))
            extents.append((partition, offset, offset + length, draw(st.none() | st.integers(0, 20))))
            offset += length + draw(st.integers(0, 2))
    order = interleave((partition, first, time) for partition, first, _, time in extents)
    count = draw(st.integers(1, 3))
    logs: dict[int, list[tuple[int, RecordShare]]] = {target: [] for target in range(count)}
    records: dict[int, int] = dict.fromkeys(range(count), 100)
    for place in order:
        partition, first, end, _ = extents[place]
        owners = [draw(st.integers(0, count - 1)) for _ in range(first, end)]
        for target in range(count):
            mine = [first + number for number, owner in enumerate(owners) if owner == target]
            share = RecordShare(partition=partition, first=first, end=end, base=records[target], count=len(mine))
            logs[target] += [(offset, share) for offset in mine]
            if not mine:
                logs[target].append((-1, share))
            records[target] += len(mine)
    committed = draw(st.dictionaries(st.integers(0, 3), st.integers(0, 30), max_size=4))
    return logs, committed


@settings(max_examples=200)
@given(repartitioned())
def test_a_group_of_a_repartitioned_topic_never_skips_a_record(
    example: tuple[dict[int, list[tuple[int, RecordShare]]], dict[int, int]],
) -> None:
    logs, committed = example
    for entries in logs.values():
        shares = list(dict.fromkeys(share for _, share in entries))
        records = [(share.partition, offset) for offset, share in entries if offset >= 0]
        found = find_position(shares, committed, base=100)
        skipped_records, rest = records[: found.offset - 100], records[found.offset - 100 :]
        assert all(offset < committed.get(partition, 0) for partition, offset in skipped_records)
        seen_twice = sum(offset < committed.get(partition, 0) for partition, offset in rest)
        assert seen_twice <= found.seen_twice_max


def test_a_repartitioned_topic_gives_each_target_partition_a_position() -> None:
    shares: Mapping[int, tuple[int, list[RecordShare]]] = {
        0: (
            0,
            [
                RecordShare(partition=0, first=0, end=10, base=0, count=6),
                RecordShare(partition=1, first=0, end=10, base=6, count=5),
            ],
        ),
        1: (4, []),
    }
    topics = {"orders": RestoredTopic(topic_id=TOPIC_ID, target="back", shares=shares)}
    found = translate_groups([group("g", ("orders", 0, 10), ("orders", 1, 3))], topics)
    assert [(each.where.partition, each.offset, each.seen_twice_max, each.move) for each in found] == [
        (0, 6, 3, Move.EARLIER),
        (1, 4, 0, Move.SAME),
    ]

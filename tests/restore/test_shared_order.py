"""Sharing records out is a function of what is read: for any shape, with any answers, from any cut on."""

from __future__ import annotations

from itertools import count, product
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from maxbrod.errors import CorruptDataError, RefusedError
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.mapping import decode_shares, encode_shares, find_position
from maxbrod.restore.plan.targets import LogExtent
from maxbrod.restore.repartition import split as repartition_split
from maxbrod.restore.repartition import task as repartition_task
from maxbrod.restore.repartition.task import records_present
from support.shared_logs import BASE, Came, Choice, Logs, piece, records_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maxbrod.restore.repartition.task import SourceRecords

pytestmark = pytest.mark.full

Read = list[tuple[int, list[tuple[int, bytes | None]]]]
"""Pieces in the order of the plan: source partition, then offsets and keys."""

hot = st.sampled_from([None, b"", b"hot", b"hot", b"hot", b"a", b"bb", b"ccc", b"dddd"])
cold = st.none() | st.binary(max_size=6)


@st.composite
def reads(draw: st.DrawFn, most: int = 12) -> Read:
    reached: dict[int, int] = {}
    keys = draw(st.sampled_from([hot, cold]))
    found: Read = []
    for partition in draw(st.lists(st.integers(0, draw(st.integers(0, 7))), max_size=most)):
        rows = []
        for key in draw(st.lists(keys, min_size=1, max_size=6)):
            offset = reached.get(partition, 0) + draw(st.integers(0, 2))
            rows.append((offset, key))
            reached[partition] = offset + 1
        found.append((partition, rows))
    return found


def pieces_of(read: Read) -> list[SourceRecords]:
    return [piece(partition, rows) for partition, rows in read]


def shared_out(read: Read, count: int) -> dict[int, list[Came]]:
    """What must stand in each target partition, record by record."""
    logs: dict[int, list[Came]] = {each: [] for each in range(count)}
    for partition, rows in read:
        for offset, key in rows:
            target = partition % count if key is None else (murmur2(key) & 0x7FFFFFFF) % count
            logs[target].append((partition, offset))
    return logs


@settings(max_examples=150, deadline=None)
@given(reads(), st.integers(1, 9), st.integers(1, 400), st.integers(1, 400), st.data())
def test_no_shape_and_no_order_of_answers_ends_in_a_deadlock(
    read: Read, count: int, round_bytes: int, waiting_bytes: int, data: st.DataObject
) -> None:
    with (
        patch.object(repartition_split, "ROUND_BYTES", round_bytes),
        patch.object(repartition_task, "WAITING_BYTES_MAX", waiting_bytes),
    ):
        logs = Logs(count)
        seed = data.draw(st.randoms(use_true_random=False))
        logs.run(pieces_of(read), lambda choices: seed.randrange(len(choices)))
    assert logs.appended == shared_out(read, count)


def test_little_waits_however_slow_a_partition_is() -> None:
    """One partition answers once in a while, the others at once."""
    rows: list[tuple[int, bytes | None]] = [(offset, b"key-%d" % offset) for offset in range(4000)]
    read: Read = [(0, rows[first : first + 20]) for first in range(0, 4000, 20)]
    turn = count()

    def choose(choices: list[Choice]) -> int:
        number = next(turn)
        slow = ("ack", 3) in choices and number % 50 == 0
        others = [place for place, each in enumerate(choices) if each[0] == "ack" and each[1] != 3]
        if slow or (others and number % 2):
            return choices.index(("ack", 3)) if slow else others[0]
        return number // 2 % max(sum(kind == "pull" for kind, _ in choices), 1)

    with (
        patch.object(repartition_split, "ROUND_BYTES", 1000),
        patch.object(repartition_task, "WAITING_BYTES_MAX", 10_000),
    ):
        logs = Logs(4)
        logs.run(pieces_of(read), choose)
    assert logs.appended == shared_out(read, 4)
    assert 10_000 < logs.waiting_most < 13_000


@settings(max_examples=100, deadline=None)
@given(reads(), st.integers(1, 6), st.integers(1, 3))
def test_tasks_that_divide_the_targets_give_what_one_gives(read: Read, count: int, tasks: int) -> None:
    together: dict[int, list[Came]] = {}
    for number in range(min(tasks, count)):
        logs = Logs(count, mine=range(number, count, tasks))
        logs.run(pieces_of(read), lambda choices: len(choices) - 1)
        together |= logs.appended
    assert together == shared_out(read, count)


READ: Read = [
    (0, [(0, b"a"), (1, None), (2, b"b"), (5, b"a")]),
    (2, [(7, None), (8, b"c"), (9, b"d")]),
    (1, [(0, b"b"), (1, b"b")]),
    (0, [(6, b"c"), (7, b"a")]),
    (2, [(12, b"e"), (13, None)]),
]
KEYS = {(partition, offset): key for partition, rows in READ for offset, key in rows}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_from_every_cut_of_the_logs_it_goes_on_without_loss_or_repetition(count: int) -> None:
    whole = shared_out(READ, count)
    complete = Logs(count)
    complete.run(pieces_of(READ))
    for cuts in product(*(range(len(log) + 1) for log in whole.values())):
        for last in (1, 3):
            lengths = dict(enumerate(cuts))
            tails = {each: whole[each][max(cut - last, 0) : cut] for each, cut in lengths.items() if cut}
            logs = Logs(count, {each: records_of(tail, KEYS) for each, tail in tails.items()}, lengths)
            logs.run(pieces_of(READ))
            assert {each: whole[each][: lengths[each]] + logs.appended[each] for each in whole} == whole
            assert [each.shares for each in logs.targets] == [each.shares for each in complete.targets]


def test_a_foreign_record_at_the_end_of_a_log_is_refused_before_anything_is_appended() -> None:
    (log,) = shared_out(READ, 1).values()
    for cut in range(1, len(log) + 1):
        tail = [*log[max(cut - 3, 0) : cut - 1], (9, 9)]
        logs = Logs(1, {0: records_of(tail, {**KEYS, (9, 9): b"a"})}, {0: cut})
        with pytest.raises(RefusedError, match="not the one that this restore wrote"):
            logs.run(pieces_of(READ))
        assert logs.appended == {0: []}


def test_a_log_that_has_more_than_the_restore_puts_there_is_refused() -> None:
    (log,) = shared_out(READ, 1).values()
    logs = Logs(1, {0: records_of([(9, 9)], {(9, 9): None})}, {0: len(log) + 1})
    with pytest.raises(RefusedError, match="longer than this restore"):
        logs.run(pieces_of(READ))


def test_what_is_wrong_with_one_log_ends_that_one_only() -> None:
    whole = shared_out(READ, 3)
    logs = Logs(3, {1: records_of([(9, 9)], {(9, 9): b"a"})}, {1: 1})
    with pytest.raises(RefusedError, match="not the one that this restore wrote"):
        logs.run(pieces_of(READ))
    assert logs.appended == {**whole, 1: []}
    assert [each.done for each in logs.targets] == [True, False, True]
    assert logs.targets[1].written_shares()[-1].base < BASE + 1 == logs.targets[1].reached


def test_a_record_that_the_target_does_not_take_ends_one_partition_after_all_before_it() -> None:
    large = b"k" * 500
    read: Read = [*READ, (0, [(8, large), (9, b"a"), (10, b"b"), (11, b"c"), (12, b"d"), (13, b"e")])]
    whole = shared_out(read, 3)
    (target,) = (each for each, log in whole.items() if (0, 8) in log)
    with patch.object(repartition_split, "ROUND_BYTES", 1):
        logs = Logs(3, batch_bytes_max=400)
        with pytest.raises(RefusedError, match="at offset 8 is too large for the target"):
            logs.run(pieces_of(read))
    assert logs.appended == {**whole, target: whole[target][: whole[target].index((0, 8))]}
    assert [each.done for each in logs.targets] == [each != target for each in range(3)]


def test_what_comes_before_damage_in_the_archive_is_appended_and_nothing_is_said_to_be_done() -> None:
    def damaged() -> Iterator[SourceRecords]:
        yield from pieces_of(READ[:2])
        raise CorruptDataError("a batch is damaged")

    logs = Logs(3)
    with pytest.raises(CorruptDataError):
        logs.run(damaged())
    assert logs.appended == shared_out(READ[:2], 3)
    assert not any(each.done or each.failure for each in logs.targets)


def test_a_batch_that_began_before_the_restore_is_refused() -> None:
    with pytest.raises(RefusedError, match="began before"):
        Logs(1, {0: records_of([(0, 0), (0, 1)], {(0, 0): None, (0, 1): None})}, {0: 1})


@settings(max_examples=200, deadline=None)
@given(
    reads(),
    st.integers(1, 5),
    st.lists(st.dictionaries(st.integers(0, 7), st.integers(0, 20), max_size=8), min_size=1, max_size=4),
    st.sampled_from([1, 200, 10**6]),
)
def test_a_group_that_was_archived_goes_on_at_exactly_the_first_record_that_it_lacks(
    read: Read, count: int, groups: Sequence[dict[int, int]], round_bytes: int
) -> None:
    marks = {each: sorted({group[each] for group in groups if each in group}) for each in range(8)}
    with patch.object(repartition_split, "ROUND_BYTES", round_bytes):
        logs = Logs(count, marks=marks)
        logs.run(pieces_of(read))
    whole = shared_out(read, count)
    for target in logs.targets:
        base, shares = decode_shares(encode_shares(target.shares, base=BASE))
        assert (base, list(shares)) == (BASE, target.shares)
        log = whole[target.where.partition]
        for committed in groups:
            done = [offset < committed.get(partition, 0) for partition, offset in log]
            first = done.index(False) if False in done else len(log)
            found = find_position(shares, committed, base=BASE)
            assert (found.offset - BASE, found.seen_twice_max) == (first, sum(done[first:]))


def test_a_log_that_is_too_short_or_has_lost_its_start_is_refused() -> None:
    where = TopicPartition(topic="orders", partition=0)
    assert records_present(where, 4, LogExtent(start=0, end=9)) == 5
    with pytest.raises(RefusedError, match="before offset 4"):
        records_present(where, 4, LogExtent(start=0, end=3))
    with pytest.raises(RefusedError, match="were deleted"):
        records_present(where, 4, LogExtent(start=5, end=9))

"""A log that was cut is never archived as one history with what the archive held of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from maxbrod.backup import truncation
from maxbrod.backup.truncation import diverges_at, find_mixed
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.kafka.fetch.offsets import EpochEnd
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import PartitionId, TopicPartition
from support.backup_plans import PARTITION, TOPIC, part
from support.backup_plans import outcome as plain_outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.backup.plan.ranges import Outcome

WHERE = TopicPartition(topic=TOPIC, partition=PARTITION.partition)


def outcome(start: int, end: int, *epochs: tuple[int, int]) -> Outcome:
    """A range whose slices have these first and last epochs."""
    step = (end - start) // len(epochs)
    slices = (
        replace(part(base, base + step), first_leader_epoch=first, last_leader_epoch=last)
        for base, (first, last) in zip(range(start, end, step), epochs, strict=True)
    )
    return plain_outcome(start, end, *slices)


class Leader:
    """Answers for the log as it is now: the end of each epoch."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self.ends = ends
        self.asked: list[int] = []

    def epoch_ends(
        self,
        _: KafkaClient,
        wanted: Mapping[TopicPartition, int],
        *,
        deadline: object,  # noqa: ARG002 - as the original has it
        failed: dict[TopicPartition, MaxbrodError],
    ) -> dict[TopicPartition, EpochEnd]:
        self.asked += wanted.values()
        if not self.ends:
            failed.update(dict.fromkeys(wanted, UnavailableError("gone")))
            return {}
        epoch = max(each for each in self.ends if each <= wanted[WHERE])
        return {WHERE: EpochEnd(leader_epoch=epoch, end_offset=self.ends[epoch])}


def mixed(
    monkeypatch: pytest.MonkeyPatch, leader: Leader, held: ArchivedRange | None, *outcomes: Outcome
) -> set[PartitionId]:
    monkeypatch.setattr(truncation, "epoch_ends", leader.epoch_ends)
    positions = {} if held is None else {PARTITION: held}
    return set(find_mixed(KafkaClient.__new__(KafkaClient), positions, list(outcomes), patience_s=1))


HELD = ArchivedRange(topic=TOPIC, first_offset=0, end_offset=100, last_leader_epoch=3)


def test_nobody_is_asked_while_the_epoch_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader({3: 300})
    assert not mixed(monkeypatch, leader, HELD, outcome(100, 200, (3, 3)), outcome(200, 300, (3, 3)))
    assert not mixed(monkeypatch, leader, None, outcome(0, 100, (2, 3)))
    assert leader.asked == []


def test_an_epoch_that_rose_cleanly_is_one_history(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader({3: 100, 4: 300})
    assert not mixed(monkeypatch, leader, HELD, outcome(100, 200, (4, 4)))
    assert leader.asked == [3]


@pytest.mark.parametrize(
    ("ends", "why"),
    [({3: 90, 4: 300}, "what is held was cut"), ({2: 100, 4: 300}, "its epoch is not there"), ({}, "nobody answers")],
)
def test_what_does_not_continue_what_is_held_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, ends: dict[int, int], why: str
) -> None:
    assert mixed(monkeypatch, Leader(ends), HELD, outcome(100, 200, (4, 4))) == {PARTITION}, why


def test_two_ranges_of_two_histories_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first was read before the log was cut at 150, the second after it had grown again."""
    leader = Leader({3: 150, 4: 300})
    assert mixed(monkeypatch, leader, HELD, outcome(200, 300, (4, 4)), outcome(100, 200, (3, 3))) == {PARTITION}


def test_within_a_range_the_broker_has_compared_them(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader({3: 100, 4: 120, 5: 300})
    assert not mixed(monkeypatch, leader, HELD, outcome(100, 200, (3, 4), (5, 5)))
    assert leader.asked == []


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((5, 80), 80),
        ((-1, -1), None),
        # The log never had epoch 5; of epoch 4 it has more than is held, and the row that leaves epoch 4 begins at 30.
        ((4, 80), 30),
        ((3, 20), 0),
    ],
)
def test_rows_of_epochs_that_the_log_does_not_have_are_not_trusted(
    answer: tuple[int, int], expected: int | None
) -> None:
    assert diverges_at([(60, 5), (30, 5), (0, 4)], asked_epoch=5, answer=answer) == expected

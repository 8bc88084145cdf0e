"""When a message is acknowledged: only after its events are durable, and bad ones in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import UnavailableError
from maxbrod.replicate.seed.queue import QueueCounts, QueueMessage, pump
from support.s3_events import EVENT, body, record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.replicate.seed.s3_events import ObjectEvent


@dataclass
class MemoryQueue:
    """Delivers everything again that is not acknowledged."""

    bodies: dict[str, str]
    has_dead_letters: bool = False
    deliveries: dict[str, int] = field(default_factory=dict)

    def receive(self) -> list[QueueMessage]:
        for each in self.bodies:
            self.deliveries[each] = self.deliveries.get(each, 0) + 1
        return [
            QueueMessage(id=each, receipt=each, body=text, deliveries=self.deliveries[each])
            for each, text in self.bodies.items()
        ]

    def acknowledge(self, messages: Sequence[QueueMessage]) -> None:
        for each in messages:
            del self.bodies[each.id]


def test_a_message_is_acknowledged_after_its_events_are_durable() -> None:
    queue, counts = MemoryQueue({"a": body(record())}), QueueCounts()
    kept: list[ObjectEvent] = []

    def keep(events: Sequence[ObjectEvent]) -> None:
        assert "a" in queue.bodies
        kept.extend(events)

    pump(queue, keep, counts)
    assert (kept, queue.bodies) == ([EVENT], {})
    assert (counts.received, counts.acknowledged, counts.events) == (1, 1, 1)


def test_no_number_of_failures_acknowledges_a_message_that_is_not_durable() -> None:
    """The original deletes it at the third delivery, and the event is lost."""
    queue, counts = MemoryQueue({"a": body(record())}), QueueCounts()

    def fail(_: Sequence[ObjectEvent]) -> None:
        raise UnavailableError("the destination is down")

    for _ in range(10):
        with pytest.raises(UnavailableError):
            pump(queue, fail, counts)
    assert (list(queue.bodies), counts.acknowledged) == (["a"], 0)
    kept: list[ObjectEvent] = []
    pump(queue, kept.extend, counts)
    assert (kept, queue.bodies) == ([EVENT], {})


def test_a_poisoned_message_is_dropped_after_three_deliveries_and_blocks_no_other() -> None:
    queue, counts = MemoryQueue({"bad": "\0", "good": body(record())}), QueueCounts()
    kept: list[ObjectEvent] = []
    for _ in range(4):
        pump(queue, kept.extend, counts)
    assert (kept, queue.bodies) == ([EVENT], {})
    assert (counts.invalid, counts.dropped, queue.deliveries["bad"]) == (3, 1, 3)


def test_a_poisoned_message_is_left_to_the_dead_letter_policy() -> None:
    queue, counts = MemoryQueue({"bad": "{}"}, has_dead_letters=True), QueueCounts()
    for _ in range(9):
        pump(queue, lambda _: None, counts)
    assert (list(queue.bodies), counts.dropped) == (["bad"], 0)


def test_the_good_entries_of_a_message_count() -> None:
    queue, counts = MemoryQueue({"a": body(7, record())}), QueueCounts()
    kept: list[ObjectEvent] = []
    pump(queue, kept.extend, counts)
    assert (kept, queue.bodies, counts.invalid) == ([EVENT], {}, 1)

"""A queue of notifications: what a source must do, and when a message is acknowledged.

A message is acknowledged only when its events are durable here. Until then the queue delivers it again. A message that
nobody can understand would come back for ever: after a few deliveries it is dropped and counted, or left to the queue's
own dead-letter policy if it has one. What it announced is found by polling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from maxbrod.errors import CorruptDataError
from maxbrod.replicate.notify.s3_events import ObjectEvent, parse_notification

_LOG: Final = logging.getLogger(__name__)
DELIVERIES_MAX: Final = 3
"""Of a message that cannot be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    id: str
    receipt: str
    body: str
    deliveries: int
    """How often it was delivered, this time included."""


class Queue(Protocol):
    """Messages that are delivered at least once, in any order."""

    has_dead_letters: bool
    """Whether the queue itself puts aside what is delivered too often."""

    def receive(self) -> list[Message]:
        """The next messages; none after a while. Each comes again unless it is acknowledged."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Delete these messages. One that is delivered again all the same is a duplicate."""


Keep: TypeAlias = Callable[[Sequence[ObjectEvent]], None]
"""Makes events durable, or raises. Duplicates are events like others."""


@dataclass(slots=True)
class QueueCounts:
    received: int = 0
    """Messages, repeated ones included."""
    acknowledged: int = 0
    events: int = 0
    others: int = 0
    """Entries about something other than an object that was created or removed."""
    invalid: int = 0
    """Messages and entries that cannot be understood."""
    dropped: int = 0
    """Messages that were deleted without being understood."""


def pump(queue: Queue, keep: Keep, counts: QueueCounts) -> None:
    """Receive once, make the events durable, acknowledge. If that raises, nothing is acknowledged."""
    messages = queue.receive()
    events: list[ObjectEvent] = []
    understood: list[Message] = []
    for message in messages:
        counts.received += 1
        try:
            found = parse_notification(message.body)
        except CorruptDataError as error:
            counts.invalid += 1
            if _is_dropped(queue, message, error):
                counts.dropped += 1
                understood.append(message)
            continue
        counts.others += found.others
        counts.invalid += found.invalid
        if found.invalid:
            _LOG.warning("%d entries of the notification %s cannot be understood", found.invalid, message.id)
        events += found.events
        understood.append(message)
    if events:
        keep(events)
        counts.events += len(events)
    if understood:
        queue.acknowledge(understood)
        counts.acknowledged += len(understood)


def _is_dropped(queue: Queue, message: Message, error: CorruptDataError) -> bool:
    if queue.has_dead_letters or message.deliveries < DELIVERIES_MAX:
        _LOG.info("%s: %s; it stays in the queue", message.id, error.message)
        return False
    _LOG.warning(
        "the notification %s is dropped after %d deliveries: %s", message.id, message.deliveries, error.message
    )
    return True

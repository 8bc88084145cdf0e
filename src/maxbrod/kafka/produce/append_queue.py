"""What waits to be appended to one partition, what is under way, and what must be sent once more. No I/O.

Order is kept by one rule: after a failure nothing new is sent until every request under way is answered; then what
was not acknowledged goes out again, in order. A broker remembers the last five batches of a producer, so at most five
are under way, and a batch that had arrived after all is answered with the offset that it has. Markers have no
sequence numbers: a hole is sent alone, after all before it was acknowledged, and all after it waits. So is the first
batch, as a broker takes any sequence number from a producer that it does not know yet.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from maxbrod.errors import UnavailableError
from maxbrod.kafka.produce.appends import LATER, Acknowledged, Append, Feed, Hole
from maxbrod.kafka.wire.client import gave_up
from maxbrod.kafka.wire.deadline import Backoff, Deadline

IN_FLIGHT_MAX: Final = 5
"""So many batches of a producer a broker can tell from new ones when they come again."""
_TIMES_TO_BELIEVE: Final = 3


class Entry:
    """A batch or a hole with its place in the target, and what is known about it."""

    __slots__ = ("append", "base_offset", "done", "found_offset", "landed", "log_append_time_ms")

    def __init__(self, append: Append, base_offset: int) -> None:
        self.append = append
        self.base_offset = base_offset
        self.found_offset = -1
        """Where the broker says that it is, if it does."""
        self.landed = 0
        """Of a hole: how many of its offsets are filled."""
        self.log_append_time_ms = -1
        self.done = False

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.append.count

    def land(self, count: int) -> None:
        self.landed = count
        self.done = count >= self.append.count


class AppendQueue:
    """Of one partition."""

    def __init__(self, feed: Feed, *, in_flight_max: int, patience_s: float) -> None:
        self.feed = feed
        self.where = feed.where
        self.topic = feed.where.topic.encode()
        self.topic_id = feed.topic_id.bytes
        self.leader: int | None = None
        self.in_flight = 0
        self.failed = False
        self._source = iter(feed.appends)
        self._exhausted = False
        self._known = False
        self.unproven = False
        """Whether the last that was acknowledged is a hole: only where the next batch lands shows that it is filled."""
        self._waiting: deque[Entry] = deque()
        self._sent = 0
        self._end = feed.first_offset or 0
        self._in_flight_max = in_flight_max
        self._patience_s = patience_s
        self._calm()
        self.renew_patience()

    @property
    def anywhere(self) -> bool:
        """Whether others may write to the partition, so that the offsets of entries are only counted from 0 on."""
        return self.feed.first_offset is None

    @property
    def finished(self) -> bool:
        return self._exhausted and not self._waiting

    @property
    def acknowledged_to(self) -> int:
        """The target's offset up to which everything is acknowledged."""
        return self._waiting[0].base_offset if self._waiting else self._end

    @property
    def head(self) -> Entry | None:
        """The first that is not acknowledged."""
        return self._waiting[0] if self._waiting else None

    @property
    def source_offset(self) -> int:
        """Where in the archive the first that is not acknowledged stands."""
        return self._waiting[0].append.source_offset if self._waiting else -1

    @property
    def pause_s(self) -> float:
        """How long nothing may be sent yet."""
        return self._not_before - time.monotonic()

    # Sending

    def next_entry(self) -> Entry | None:
        """What may be sent now, if anything may."""
        if self.failed or (self._not_before and self.pause_s > 0):
            return None
        while self._sent < len(self._waiting) and self._waiting[self._sent].done:
            self._sent += 1
        if self._sent == len(self._waiting) and not self._pull():
            return None
        entry = self._waiting[self._sent]
        return None if self._sent and self._must_wait(entry) else entry

    def _must_wait(self, entry: Entry) -> bool:
        """Whether all before it must be acknowledged first."""
        before = self._waiting[self._sent - 1]
        return not self._known or isinstance(entry.append, Hole) or isinstance(before.append, Hole)

    def _pull(self) -> bool:
        if self._exhausted or len(self._waiting) >= self._in_flight_max:
            return False
        append = next(self._source, None)
        if append is None:
            self._exhausted = True
            return False
        if not self._waiting and (append is not LATER or self.deadline.passed):
            self.renew_patience()  # whatever time the source took was not the cluster's
        if append is LATER:
            return False
        self._waiting.append(Entry(append, self._end))
        self._end += append.count
        return True

    def sent(self) -> None:
        """What `next_entry` gave is under way."""
        self._sent += 1
        self.in_flight += 1

    # Answers

    def acknowledged(self) -> list[Acknowledged]:
        """What is done now and all before it is, in order."""
        found = []
        while self._waiting and self._waiting[0].done:
            entry = self._waiting.popleft()
            append = entry.append
            base_offset = entry.found_offset if self.anywhere else entry.base_offset
            if self._sent:
                self._sent -= 1
            self.unproven = isinstance(append, Hole)
            self._known = self._known or not self.unproven
            found.append(
                Acknowledged(self.where, base_offset, append.count, append.source_offset, entry.log_append_time_ms)
            )
        if found:
            self.renew_patience()
        return found

    def again(self) -> None:
        """Part of a hole is filled: the rest is sent next."""
        self._sent = 0

    # Failures

    def fail(self, error: UnavailableError) -> None:
        """Nothing is sent until all under way is answered and a pause is over; raises when patience is at its end."""
        self.leader = None
        if self.failed:
            return
        self.failed = self._troubled = True
        self._not_before = time.monotonic() + self._backoff.next_s()
        self._last_error = error
        self.check_patience()

    def check_patience(self) -> None:
        if self.deadline.passed:
            error = self._last_error
            error.offset = self.source_offset
            error.object_name = error.object_name or str(self.where)
            raise gave_up(error, f"the leader of {self.where} to take a batch", self._patience_s) from error

    def recover(self) -> None:
        """All is answered: what is not acknowledged is sent again, from the first on."""
        self.failed = False
        self._sent = 0

    def renew_patience(self) -> None:
        self._patient_since = time.monotonic()
        if self._troubled:
            self._calm()

    def _calm(self) -> None:
        """Whatever was wrong is over."""
        self._troubled = False
        self._backoff = Backoff()
        self._not_before = 0.0
        self._said: dict[str, int] = {}
        self._last_error = UnavailableError("nothing could be sent")

    @property
    def deadline(self) -> Deadline:
        return Deadline(self._patient_since + self._patience_s)

    def believe(self, what: str) -> bool:
        """Whether it was said often enough: brokers say much for a moment when leaders change."""
        self._troubled = True
        self._said[what] = self._said.get(what, 0) + 1
        return self._said[what] >= _TIMES_TO_BELIEVE

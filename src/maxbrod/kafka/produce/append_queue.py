"""The appends of one partition that wait, that are in flight, and that must be sent again. No I/O.

One rule keeps the order: after a failure nothing new is sent until every request in flight is answered or lost; then
everything not acknowledged is sent again, in order. A lost response does not mean a lost batch: the broker may have
appended it. A broker remembers the last five batches of a producer, so at most five are in flight, and a batch that had
arrived is answered with the offset that it has. Markers have no sequence numbers: a hole is sent alone, after
everything before it is acknowledged, and everything after it waits. The first batch is sent alone as well: a broker
accepts any sequence number from a producer that it does not know, so a second batch that overtakes a lost first one
would be appended in its place.
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
"""The number of batches of a producer that a broker recognizes when they arrive again."""
_REPORTS_TO_CONFIRM: Final = 3


class QueuedAppend:
    """A batch or a hole, its offset in the target, and its state."""

    __slots__ = ("append", "base_offset", "done", "found_offset", "landed", "log_append_time_ms")

    def __init__(self, append: Append, base_offset: int) -> None:
        self.append = append
        self.base_offset = base_offset
        self.found_offset = -1
        """The offset that the broker reported, if any."""
        self.landed = 0
        """The number of offsets of a hole that are filled."""
        self.log_append_time_ms = -1
        self.done = False

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.append.count

    def land(self, count: int) -> None:
        self.landed = count
        self.done = count >= self.append.count


class AppendQueue:
    """The queue of one partition."""

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
        """True if the last acknowledged entry is a hole. Only the offset of the next batch proves that it is filled."""
        self.fenced = False
        """True if the log has a marker of this producer: the broker refuses those of an earlier epoch."""
        self._waiting: deque[QueuedAppend] = deque()
        self._sent = 0
        self._end = feed.first_offset or 0
        self._in_flight_max = in_flight_max
        self._patience_s = patience_s
        self._reset_failures()
        self.renew_patience()
        self.proven()

    @property
    def anywhere(self) -> bool:
        """True if others may write to the partition. Then the offsets of entries are relative, from 0."""
        return self.feed.first_offset is None

    @property
    def finished(self) -> bool:
        return self._exhausted and not self._waiting

    @property
    def acknowledged_to(self) -> int:
        """The target offset up to which everything is acknowledged."""
        return self._waiting[0].base_offset if self._waiting else self._end

    @property
    def head(self) -> QueuedAppend | None:
        """The first entry that is not acknowledged."""
        return self._waiting[0] if self._waiting else None

    @property
    def source_offset(self) -> int:
        """The archive offset of the first entry that is not acknowledged."""
        return self._waiting[0].append.source_offset if self._waiting else -1

    @property
    def pause_s(self) -> float:
        """The time until something may be sent."""
        return self._not_before - time.monotonic()

    @property
    def unproven_s(self) -> float:
        """The time since the log was known to end where everything acknowledged ends. No clock runs in every pause."""
        return max(time.monotonic() - self._proven_at[0], time.time() - self._proven_at[1])

    def proven(self) -> None:
        """The log ends where everything acknowledged ends."""
        self._proven_at = time.monotonic(), time.time()

    # Sending

    def next_entry(self) -> QueuedAppend | None:
        """The entry that may be sent now, if any."""
        if self.failed or (self._not_before and self.pause_s > 0):
            return None
        while self._sent < len(self._waiting) and self._waiting[self._sent].done:
            self._sent += 1
        if self._sent == len(self._waiting) and not self._pull():
            return None
        entry = self._waiting[self._sent]
        return None if self._sent and self._must_wait(entry) else entry

    def _must_wait(self, entry: QueuedAppend) -> bool:
        """True if everything before the entry must be acknowledged first."""
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
            self.renew_patience()  # the time that the source took does not count against the cluster
        if append is LATER:
            return False
        self._waiting.append(QueuedAppend(append, self._end))
        self._end += append.count
        return True

    def sent(self) -> None:
        """The entry from `next_entry` is in flight."""
        self._sent += 1
        self.in_flight += 1

    # Answers

    def acknowledged(self) -> list[Acknowledged]:
        """Remove and return the acknowledged entries at the head, in order."""
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
            self.proven()
        return found

    def again(self) -> None:
        """Part of a hole is filled: send the rest next."""
        self._sent = 0

    # Failures

    def fail(self, error: UnavailableError) -> None:
        """Send nothing until everything in flight is settled and a pause is over. Raises after the deadline."""
        self.leader = None
        if self.failed:
            return
        self.failed = self._had_failure = True
        self._not_before = time.monotonic() + self._backoff.next_s()
        self._last_error = error
        self.check_patience()

    def check_patience(self) -> None:
        if self.deadline.passed:
            error = self._last_error
            error.offset = self.source_offset
            error.object_name = error.object_name or str(self.where)
            raise gave_up(error, f"the leader of {self.where} to accept a batch", self._patience_s) from error

    def recover(self) -> None:
        """Nothing is in flight: send everything not acknowledged again, from the first on."""
        self.failed = False
        self._sent = 0

    def renew_patience(self) -> None:
        self._patient_since = time.monotonic()
        if self._had_failure:
            self._reset_failures()

    def _reset_failures(self) -> None:
        """Forget failures after progress."""
        self._had_failure = False
        self._backoff = Backoff()
        self._not_before = 0.0
        self._reports: dict[str, int] = {}
        self._last_error = UnavailableError("nothing could be sent")

    @property
    def deadline(self) -> Deadline:
        return Deadline(self._patient_since + self._patience_s)

    def confirm(self, what: str) -> bool:
        """Count one more report of this; whether it was repeated often enough. During elections brokers report
        errors that pass.
        """
        self._had_failure = True
        self._reports[what] = self._reports.get(what, 0) + 1
        return self._reports[what] >= _REPORTS_TO_CONFIRM

"""The times at which a job is to begin: those of a cron expression in a time zone, or of an interval.

A time is a *slot*, in milliseconds. Cron expressions have five fields and mean what Debian's cron makes of them. Where
clocks are put forward, a job of a time that does not exist begins right after the gap. Where they are put back, a job
of a fixed time begins once, and one of every hour or minute goes on by elapsed time. Slots of an interval are its
multiples, counted from 1970 in UTC, so that they are the same after a restart and on every machine.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

_FIELDS: Final = 5
_HOUR_MS: Final = 3_600_000
_FOLD: Final = timedelta(hours=3)
"""Longer than any change of a clock: a search that begins within one could miss or repeat a slot."""
_FIRST_WINDOW_MS: Final = 2 * _HOUR_MS
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Slots(ABC):
    """The slots of a job, as a set of times."""

    @abstractmethod
    def after(self, after_ms: int) -> int | None:
        """Return the first slot later than this; None: there is none."""

    @abstractmethod
    def newest(self, after_ms: int, until_ms: int) -> int | None:
        """Return the last slot that is later than `after_ms` and not later than `until_ms`."""


@dataclass(frozen=True, slots=True)
class EverySlots(Slots):
    every_ms: int

    def after(self, after_ms: int) -> int | None:
        return (after_ms // self.every_ms + 1) * self.every_ms

    def newest(self, after_ms: int, until_ms: int) -> int | None:
        found = until_ms // self.every_ms * self.every_ms
        return found if found > after_ms else None


@dataclass(frozen=True, slots=True)
class CronSlots(Slots):
    expression: str
    zone: ZoneInfo

    def after(self, after_ms: int) -> int | None:
        return next(self._from(after_ms), None)

    def newest(self, after_ms: int, until_ms: int) -> int | None:
        # A scheduler that was down for a year must not walk through every minute of it: search from the end, further
        # back each time.
        window_ms = _FIRST_WINDOW_MS
        while True:
            start_ms = max(after_ms, until_ms - window_ms)
            found = None
            for slot in self._from(start_ms):
                if slot > until_ms:
                    break
                found = slot
            if found is not None or start_ms <= after_ms:
                return found
            window_ms *= 8

    def _from(self, after_ms: int) -> Iterator[int]:
        """Yield the slots later than this, in order."""
        last = after_ms
        begin = (_at(after_ms) - _FOLD).astimezone(self.zone)
        for found in CronSim(self.expression, begin):
            slot = (found.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
            if slot > last:
                last = slot
                yield slot


def parse_cron(expression: str, zone: str) -> CronSlots:
    """Return the slots of an expression. ValueError says what is wrong with it."""
    if len(expression.split()) != _FIELDS:
        raise ValueError("a cron expression has five fields: minute, hour, day of month, month, day of week")
    try:
        known = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        raise ValueError("there is no such time zone on this machine") from None
    try:
        found = CronSlots(expression, known)
        comes = found.after((datetime.now(UTC) - _EPOCH) // timedelta(milliseconds=1)) is not None
    except CronSimError as error:
        raise ValueError(f"this is no cron expression: {str(error).lower()}") from None
    if not comes:
        raise ValueError("this cron expression never comes")
    return found


def jitter_of(name: str, slot_ms: int, jitter_ms: int) -> int:
    """Return how long after its slot a job begins: the same for this job and slot, whoever asks and however often."""
    if not jitter_ms:
        return 0
    drawn = hashlib.blake2b(f"{name}\0{slot_ms}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") % (jitter_ms + 1)


def _at(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=time_ms)

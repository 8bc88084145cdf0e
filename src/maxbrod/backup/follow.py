"""Backs up again and again on one Spark session: one run per interval, until it is told to stop.

A run that cannot reach the cluster or the store is told and tried again; one that is refused, or asked for nonsense,
ends it. The clock is steady: a run that takes longer than its interval is followed by the next one at the next tick.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.backup.choosing import open_backup
from maxbrod.backup.notices import STOPPED
from maxbrod.backup.plan.rolling import RollLimits
from maxbrod.backup.report import add_up
from maxbrod.backup.waiting import Waiting
from maxbrod.engine.progress import Progress, silent
from maxbrod.errors import EXIT_FAILED, MaxbrodError, StorageFullError
from maxbrod.model import now_ms
from maxbrod.notices import verdict_of, worst_exit_code

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from maxbrod.backup.choosing import AnyBackup
    from maxbrod.backup.options import BackupOptions
    from maxbrod.backup.report import BackupReport
    from maxbrod.config import Config
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session

_LOOK_UP_S: Final = 0.2
_BACKOFF_MAX_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One run of many: its report, or the error that it failed with."""

    number: int
    started_at_ms: int
    finished_at_ms: int
    report: BackupReport | None
    error: MaxbrodError | None
    recovery_point_ms: int | None
    """What was written before this to the topics that are followed can be brought back; None: there is none yet."""
    failures: int
    """How many have failed in a row, with this one: ended by an error, or with an archive that could not be written."""
    lags: Mapping[str, int | None] | None = None
    """Of each topic, what the cluster had when the run was planned and the archive has not; None: unknown."""

    @property
    def lag_offsets(self) -> int | None:
        """Of all topics; None where not everything could be asked."""
        return None if self.lags is None else add_up(self.lags.values())

    @property
    def lag_ms(self) -> int | None:
        return None if self.recovery_point_ms is None else max(self.finished_at_ms - self.recovery_point_ms, 0)

    @property
    def stopped(self) -> bool:
        """Whether it was ended before it had read everything."""
        return self.report is not None and any(each.kind == STOPPED for each in self.report.notices)

    @property
    def exit_code(self) -> int:
        """What it would end a command with; a stop that was asked for is none of the reasons."""
        if self.error is not None:
            return self.error.exit_code
        notices = () if self.report is None else self.report.notices
        return worst_exit_code(each for each in notices if each.kind != STOPPED)

    @property
    def verdict(self) -> str:
        return verdict_of(self.exit_code)

    def as_dict(self) -> dict[str, Any]:
        return {
            "interval": self.number,
            "started_at_ms": self.started_at_ms,
            "finished_at_ms": self.finished_at_ms,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "recovery_point_ms": self.recovery_point_ms,
            "lag_offsets": self.lag_offsets,
            "lag_ms": self.lag_ms,
            "failures": self.failures,
            "report": None if self.report is None else self.report.as_dict(),
            "error": None if self.error is None else self.error.as_dict(),
        }


def follow(
    config: Config,
    *,
    stop: threading.Event,
    on_interval: Callable[[Interval], None],
    on_progress: OnProgress = silent,
    session: Session | None = None,
) -> Interval:
    """Run until `stop` is set, or an error that no retry can help, which is raised. The last interval is returned.

    A stop finishes and commits what is being read, and then takes what thresholds have put off.
    """
    waiting = _waiting(config.backup)
    ticks = _Ticks(config.backup.every)
    with open_backup(config, session=session, on_progress=on_progress, stop=stop) as backup:
        last = _attempt(backup, None, waiting)
        on_interval(last)
        while _wait(ticks.next_in_s(last.failures), stop, on_progress):
            last = _attempt(backup, last, waiting)
            on_interval(last)
        if waiting is not None and waiting.any and last.error is None and not last.stopped:
            backup.hurry()
            last = _attempt(backup, last, None)
            on_interval(last)
    return last


def _waiting(request: BackupOptions) -> Waiting | None:
    if not request.roll_age:
        return None
    return Waiting(
        RollLimits(bytes=request.roll_bytes, records=request.roll_records, age_ms=round(request.roll_age * 1000))
    )


def _attempt(backup: AnyBackup, last: Interval | None, waiting: Waiting | None) -> Interval:
    started_at_ms = now_ms()
    report: BackupReport | None = None
    failed: MaxbrodError | None = None
    try:
        report = backup.run(demand_topics=False, waiting=waiting)
    except MaxbrodError as error:
        # Somebody may make room; nobody mends a configuration from outside.
        if not error.retryable and not isinstance(error, StorageFullError):
            raise
        failed = error
    ended_well = failed is None and (report is None or report.exit_code != EXIT_FAILED)
    return Interval(
        number=1 if last is None else last.number + 1,
        started_at_ms=started_at_ms,
        finished_at_ms=now_ms(),
        report=report,
        error=failed,
        recovery_point_ms=backup.recovery_point_ms,
        failures=0 if ended_well else 1 + (0 if last is None else last.failures),
        lags=backup.lags,
    )


class _Ticks:
    """Moments that are `every_s` apart, whatever happens between them."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next = time.monotonic()

    def next_in_s(self, failures: int) -> float:
        """Until the next tick that has not passed; later after each failure in a row."""
        now = time.monotonic()
        missed = max(0.0, now - self._next) // self._every_s if self._every_s else 0.0
        self._next = max(self._next + (missed + 1) * self._every_s, now)
        pause_s = min(self._every_s * 2 ** min(failures - 1, 10), _BACKOFF_MAX_S) if failures > 1 else 0.0
        return max(self._next - now, pause_s)


def _wait(seconds: float, stop: threading.Event, on_progress: OnProgress) -> bool:
    """False if `stop` came. Looks up now and then: waiting on the event would hold its lock when a signal sets it."""
    on_progress(Progress(phase="waiting for the next interval"))
    until = time.monotonic() + seconds
    while not stop.is_set():
        rest_s = until - time.monotonic()
        if rest_s <= 0:
            return True
        time.sleep(min(rest_s, _LOOK_UP_S))
    return False

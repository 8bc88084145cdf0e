"""Backs up repeatedly on one Spark session: one run per interval, until it is stopped.

If a run cannot reach the cluster or the store, that is reported and the next interval tries again. A refusal or a usage
error ends it. Intervals have fixed start times: after a run that takes longer, the next one starts at the next tick.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.backup.notices import STOPPED
from maxbrod.backup.plan.roll_limits import RollLimits, RollSchedule
from maxbrod.backup.report import BackupReport, add_up
from maxbrod.backup.variants import AnyBackup, open_backup
from maxbrod.errors import EXIT_FAILED, MaxbrodError, StorageFullError
from maxbrod.model import now_ms
from maxbrod.notices import verdict_of, worst_exit_code
from maxbrod.work.progress import OnProgress, Progress, silent

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from maxbrod.backup.options import BackupOptions
    from maxbrod.config import Config
    from maxbrod.work.session import Session

_POLL_S: Final = 0.2
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
    """Everything written before this to the followed topics can be restored; None: there is none yet."""
    failures: int
    """Failures in a row, including this one: the run ended with an error, or could not write the archive."""
    lags: Mapping[str, int | None] | None = None
    """For each topic, how many offsets the cluster had at planning and the archive lacks; None if unknown."""

    @property
    def lag_offsets(self) -> int | None:
        """The lag of all topics together; None if not every partition answered, or topics may be hidden."""
        if self.lags is None or (self.report is not None and self.report.partial):
            return None
        return add_up(self.lags.values())

    @property
    def lag_ms(self) -> int | None:
        return None if self.recovery_point_ms is None else max(self.finished_at_ms - self.recovery_point_ms, 0)

    @property
    def stopped(self) -> bool:
        """True if a stop ended it before it had read everything."""
        return self.report is not None and any(notice.kind == STOPPED for notice in self.report.notices)

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ends with this interval; a requested stop is not a failure."""
        if self.error is not None:
            return self.error.exit_code
        notices = () if self.report is None else self.report.notices
        return worst_exit_code(notice for notice in notices if notice.kind != STOPPED)

    @property
    def verdict(self) -> str:
        return verdict_of(self.exit_code, nothing_selected=self.report is not None and self.report.nothing_selected)

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
    opened: AbstractContextManager[AnyBackup] | None = None,
    waiting: RollSchedule | None = None,
) -> Interval:
    """Run until `stop` is set, and return the last interval. Errors that a retry cannot fix are raised.

    `opened` and `waiting` replace the backup and the thresholds that follow from the configuration.
    A stop finishes and commits the current wave. With thresholds, one more run then reads all that has come until then;
    if `on_interval` itself sets `stop`, only what the thresholds have deferred.
    """
    waiting = waiting or _waiting(config.backup)
    ticks = _Ticks(config.backup.every)
    with opened or open_backup(config, session=session, on_progress=on_progress, stop=stop) as backup:
        last = _attempt(backup, None, waiting)
        by_caller = _told(last, on_interval, stop)
        while _wait(ticks.next_in_s(last.failures), stop, on_progress):
            last = _attempt(backup, last, waiting)
            by_caller = _told(last, on_interval, stop)
        unread = waiting is not None and (waiting.any or not by_caller)
        if unread and last.error is None and not last.stopped:
            backup.hurry()
            last = _attempt(backup, last, None)
            on_interval(last)
    return last


def _told(interval: Interval, on_interval: Callable[[Interval], None], stop: threading.Event) -> bool:
    """True if `on_interval` has set `stop`."""
    before = stop.is_set()
    on_interval(interval)
    return not before and stop.is_set()


def _waiting(request: BackupOptions) -> RollSchedule | None:
    if not request.roll_age:
        return None
    return RollSchedule(
        RollLimits(bytes=request.roll_bytes, records=request.roll_records, age_ms=round(request.roll_age * 1000))
    )


def _attempt(backup: AnyBackup, last: Interval | None, waiting: RollSchedule | None) -> Interval:
    started_at_ms = now_ms()
    report: BackupReport | None = None
    failed: MaxbrodError | None = None
    try:
        report = backup.run(demand_topics=False, waiting=waiting)
    except MaxbrodError as error:
        # Someone may free space meanwhile; a wrong configuration stays wrong.
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
    """Times that are `every_s` apart, however long the runs take."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next = time.monotonic()

    def next_in_s(self, failures: int) -> float:
        """The time until the next tick, longer after each failure in a row."""
        now = time.monotonic()
        missed = max(0.0, now - self._next) // self._every_s if self._every_s else 0.0
        self._next = max(self._next + (missed + 1) * self._every_s, now)
        pause_s = min(self._every_s * 2 ** min(failures - 1, 10), _BACKOFF_MAX_S) if failures > 1 else 0.0
        return max(self._next - now, pause_s)


def _wait(seconds: float, stop: threading.Event, on_progress: OnProgress) -> bool:
    """False if `stop` was set. It polls: waiting on the event would hold its lock when a signal handler sets it."""
    on_progress(Progress(phase="waiting for the next interval"))
    until = time.monotonic() + seconds
    while not stop.is_set():
        rest_s = until - time.monotonic()
        if rest_s <= 0:
            return True
        time.sleep(min(rest_s, _POLL_S))
    return False

"""Opens the backup that a configuration asks for, and runs it once per interval, until it is stopped.

If a run cannot reach the cluster or the store, that is reported and the next interval tries again. A refusal or a usage
error ends it. Intervals have fixed start times: after a run that takes longer, the next one starts at the next tick.
Without an interval (`--every 0`) a run starts when brokers have records that the last one has not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, Unpack

from maxbrod.archive.foreign_target import TargetRequest
from maxbrod.archive.runs import STOPPED
from maxbrod.backup.commits import Part
from maxbrod.backup.foreign import ForeignBackup
from maxbrod.backup.plan.generations import DAYS, HOURS, parse_length
from maxbrod.backup.plan.ranges import RollLimits, RollSchedule
from maxbrod.backup.plan.turns import OFFSETS
from maxbrod.backup.report import BackupReport, add_up
from maxbrod.backup.run import Backup
from maxbrod.backup.turns import TurnsBackup
from maxbrod.config import Config
from maxbrod.errors import EXIT_FAILED, MaxbrodError, StorageFullError, UsageError
from maxbrod.kafka.wire.kept import keeping_clients
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import now_ms
from maxbrod.notices import verdict_of, worst_exit_code
from maxbrod.work.intervals import IDLE_S, Intervals
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.session import Session
from maxbrod.work.work import Means

_TIMES: Final = {DAYS, HOURS, OFFSETS}
"""Options of the original tool that say when, not how a layout is written."""
AnyBackup: TypeAlias = Backup | ForeignBackup


def open_backup(config: Config, *, take_part: Callable[[], Part] | None = None, **means: Unpack[Means]) -> AnyBackup:
    """Return the backup for a configuration, to be used in a `with`. UsageError if options do not fit the layout.

    `take_part`, if several writers of our own layout may divide the partitions: what this one does in the next run.
    """
    request = config.backup
    given = [
        flag
        for flag, value in (
            ("--codec", request.codec),
            ("--layout-option", request.layout_options.keys() - _TIMES),
            ("--accept-loss", request.accept_loss),
        )
        if value
    ]
    if request.generation_role is not None and config.layout != "avro":
        raise UsageError(
            "--generation-role is only for the layout avro", hint="in our own layout use --generation-every"
        )
    if config.layout in {None, NATIVE}:
        if given:
            raise UsageError(f"{given[0]} is only for the layouts of other tools", hint="choose one with --layout")
        return Backup(config, take_part=take_part, **means)
    if request.generation_role is not None:
        return TurnsBackup(config, target_request(config), **means)
    if parse_length(request.generation_every, request.layout_options) is not None:
        raise UsageError(
            "generations of compacted topics are only for our own layout",
            hint="in the layout avro, two instances take turns: see --generation-role",
        )
    return ForeignBackup(config, target_request(config), **means)


def target_request(config: Config) -> TargetRequest:
    """Return how to write a backup in another layout. Segment sizes default to that layout's own."""
    request = config.backup
    return TargetRequest(
        layout=config.layout or NATIVE,
        codec=request.codec,
        segment_bytes=request.segment_bytes,
        segment_records=request.segment_records,
        extra={name: each for name, each in request.layout_options.items() if name not in _TIMES},
        accept_loss=request.accept_loss,
    )


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
    def records(self) -> int:
        """The records that it has archived."""
        return 0 if self.report is None else self.report.records

    @property
    def stopped(self) -> bool:
        """True if a stop ended it before it had read everything."""
        return self.report is not None and any(notice.kind == STOPPED for notice in self.report.notices)

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ends with this interval. A run that a stop has cut short is incomplete."""
        if self.error is not None:
            return self.error.exit_code
        return worst_exit_code(() if self.report is None else self.report.notices)

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
    request = config.backup
    if waiting is None and request.roll_age:
        age_ms = round(request.roll_age * 1000)
        waiting = RollSchedule(RollLimits(bytes=request.roll_bytes, records=request.roll_records, age_ms=age_ms))
    intervals = Intervals(request.every, stop, on_progress)
    opening = opened or open_backup(config, session=session, on_progress=on_progress, stop=stop)
    with keeping_clients(), opening as backup:
        backup.state_every_s = IDLE_S if request.every < IDLE_S else 0.0
        last = _attempt(backup, None, waiting)
        by_caller = _told(last, on_interval, stop)
        # After a run that has read something there may be more already: the next one looks.
        while intervals.wait(last.failures, None if last.records else backup.wait_for_news):
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

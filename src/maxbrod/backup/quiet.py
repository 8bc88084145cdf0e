"""Runs that observe exactly what the run before has observed: their result follows without looking at any partition.

Most intervals of a backup that follows are such. `observing.observe` then returns the same value as in the last run,
and everything that was derived from it holds again, except for the times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maxbrod.model import PartitionId, now_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.archive.recovery import Reach
    from maxbrod.backup.observing import Observed
    from maxbrod.backup.report import BackupReport
    from maxbrod.backup.run_state import BackupRun


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietRun:
    """A run that found the archive complete and wrote nothing."""

    observed: Observed
    run: BackupRun
    lags: Mapping[str, int | None] | None
    _report: BackupReport
    _other_points: Mapping[PartitionId, int | None]
    """The recovery points of partitions that the run did not choose."""

    def again(self, run: BackupRun) -> BackupRun:
        """A run that has just observed the same, once it has planned."""
        return replace(self.run, run_id=run.run_id, started_at_ms=run.started_at_ms, notices=run.notices)

    def recovery_points(self, run: BackupRun) -> dict[PartitionId, int | None]:
        """The recovery points after such a run: everything that it chose is archived as of its start."""
        return {**self._other_points, **dict.fromkeys(self.run.plans, run.started_at_ms)}

    def report(self, run: BackupRun, version: int) -> BackupReport:
        return replace(
            self._report,
            run_id=run.run_id,
            started_at_ms=run.started_at_ms,
            finished_at_ms=now_ms(),
            notices=run.notices,
            version=version,
            recovery_point_ms=run.started_at_ms,
        )


def quiet_run(
    observed: Observed,
    run: BackupRun,
    report: BackupReport,
    reaches: Mapping[PartitionId, Reach],
    points: Mapping[PartitionId, int | None],
) -> QuietRun | None:
    """The run, if the next one would end the same with what it has observed; None if something is left to do.

    `points` are the recovery points after the run. Damage and open transactions are looked at again in every run.
    """
    if run.committed or run.interrupted or report.exit_code or not run.plans:
        return None
    if not all(reach.complete and not reach.held_back and not reach.put_off for reach in reaches.values()):
        return None
    if any(plan.state.high_watermark > plan.state.end for plan in run.plans.values()):
        return None
    return QuietRun(
        observed=observed,
        run=run,
        lags=run.lags(),
        _report=report,
        _other_points={each: point for each, point in points.items() if each not in run.plans},
    )

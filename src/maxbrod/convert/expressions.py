"""`--where` and `--select` of a conversion. Every wave of the new archive records the expressions it went through.

So neither a second conversion nor a resumed one can add records that went through other expressions.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from maxbrod.catalog.rows import Run
from maxbrod.errors import RefusedError, UsageError, error_of
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import now_ms
from maxbrod.transfer.task import TransferItem, Transferred, TransferSettings
from maxbrod.transform.plan import shown_for
from maxbrod.transform.task import Transformed, TransformSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.transform.plan import Transform

_TRANSFORM: Final = "transform"


def refuse_layout(transform: Transform | None, layout: str) -> None:
    if transform is not None and layout != NATIVE:
        raise UsageError(
            f"records cannot be transformed on their way into the layout {layout}",
            operation="convert",
            hint=f"convert them --to {NATIVE} with --where and --select first, and that into {layout}",
        )


def refuse_other(target: Archive, transform: Transform | None) -> None:
    """RefusedError: the target's records went through other expressions, or through none."""
    mine = None if transform is None else asdict(transform)
    known = [run.statistics.get(_TRANSFORM) for run in target.catalog.runs()]
    # Runs without expressions end a conversion, or had none.
    recorded = [each for each in known if each is not None]
    if target.catalog.positions() and (any(each != mine for each in recorded) or (mine is not None and not recorded)):
        raise RefusedError(
            "the records of the target went through other expressions, or through none",
            operation="convert",
            object_name=target.url,
            hint="give an empty folder, or the same --where and --select as before",
        )


def run_of_wave(run_id: str, transform: Transform) -> Run:
    """The run row that is committed with the rows of a wave."""
    at = now_ms()
    statistics: dict[str, Any] = {_TRANSFORM: asdict(transform)}
    return Run(run_id=run_id, started_at=at, finished_at=at, snapshot=None, statistics=statistics, written_at=at)


def settings_of(settings: TransferSettings, transform: Transform) -> TransformSettings:
    if settings.source_url is None or settings.source is None:
        raise UsageError("only records of an archive can be transformed, not those of a cluster")
    return TransformSettings(
        run_id=settings.run_id,
        source_url=settings.source_url,
        source=settings.source,
        target_url=settings.target_url,
        target=settings.target,
        shown=tuple(shown_for(transform.text)),
        compression=settings.options.codec or "auto",
        segment_bytes_max=settings.options.segment_bytes_max,
        segment_records_max=settings.options.segment_records_max,
    )


def as_transferred(items: Iterable[TransferItem], answers: Sequence[Transformed]) -> list[Transferred]:
    """The answers as results of a transfer. A task that failed before its first row answers with a failure only."""
    found = {(answer.topic_id, answer.partition, answer.start): answer for answer in answers}
    lost = next((answer.failure for answer in answers if answer.failure is not None), None)
    done = []
    for item in items:
        each = found.get((item.topic_id, item.where.partition, item.start))
        failure = lost if each is None else each.failure
        done.append(
            Transferred(
                where=item.where,
                topic_id=item.topic_id,
                slices=() if each is None else each.slices,
                records=0 if each is None else each.kept,
                start=item.start,
                end=item.end,
                failure=None if failure is None else error_of(failure),
            )
        )
    return done

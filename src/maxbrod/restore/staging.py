"""`--where` and `--select` of a restore: Spark transforms the records into a staging archive, which is restored.

Everything is staged before the first record goes to the cluster. So a restore that resumes after a crash reads the same
records, even if the expressions would give others a second time (`uuid()`, `now()`). Each commit holds the rows of one
wave together with the counts of its changes: what is committed is not transformed again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Final

from maxbrod.archive.archive import RESTORES, Archive, open_for_writing, open_native
from maxbrod.archive.erasures import Erasures
from maxbrod.catalog.replaced import Revisions
from maxbrod.catalog.rows import Gap, Run, Segment, decode_rows, new_run_id
from maxbrod.config import Config, StorageConfig
from maxbrod.errors import MaxbrodError, RefusedError, UnavailableError, UsageError
from maxbrod.model import GapReason, PartitionId, now_ms
from maxbrod.restore.plan.plan import RestorePlan, sources_of
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.plan.sources import Source, UnreadableRange, revisions_of, sound_part
from maxbrod.restore.state import STAGED, stagings_done
from maxbrod.storage.composed import OWN_FOLDER
from maxbrod.storage.stores import open_plain
from maxbrod.transfer.plan import ConvertPart, convert_rows, shares, waves
from maxbrod.transfer.task import TransferItem, Transferred, TransferSettings, key_of
from maxbrod.transform import frame
from maxbrod.transform.frame import check_transform, run_transform_job
from maxbrod.transform.plan import Changes, Transform, TransformPlan, add_changes, shown_for
from maxbrod.work.preflight import needs_of
from maxbrod.work.progress import Meter, OnProgress
from maxbrod.work.reach import Needs, Place
from maxbrod.work.session import Session, open_configured, parallelism_of
from maxbrod.work.windows import spread
from maxbrod.work.work import Work

COMMIT_BYTES: Final = 4 << 30
_CHANGES: Final = "changes"


@contextmanager
def transform_session(work: Work, request: RestoreRequest) -> Iterator[Session | None]:
    """A Spark session for the plan and for the restore that follows; None if the request has no expressions."""
    if request.transform is None:
        yield None
        return
    work.tell("starting Spark")
    with open_configured(work.config.spark, jvm_works=True, needs=_needs(work.config, request)) as opened:
        yield opened


def _needs(config: Config, request: RestoreRequest) -> Needs:
    """The needs of any restore; besides, tasks write where the records are staged."""
    if config.restore.dry_run:
        return needs_of(config)
    needs = needs_of(config, writes=request.staging is None)
    if request.staging is None:
        return needs
    return replace(needs, places=(*needs.places, Place(url=request.staging, storage=config.storage, writes=True)))


def plan_transform(
    session: Session, archive: Archive, request: RestoreRequest, restore_id: str
) -> TransformPlan | None:
    """UsageError: an expression is invalid, or uses something else than the columns of the table."""
    if request.transform is None:
        return None
    # In a folder of `--staging`, or in the archive beside the plan.
    own = "" if archive.is_native else f"{OWN_FOLDER}/"
    url = f"{archive.url}/{own}{RESTORES}/{restore_id}/{STAGED}"
    if request.staging is not None:
        url = f"{request.staging.rstrip('/')}/{restore_id}"
    return TransformPlan(
        where=request.where,
        select=request.select,
        fields=check_transform(session, request.transform),
        staging=url,
    )


def stage(
    work: Work, session: Session, archive: Archive, request: RestoreRequest, plan: RestorePlan, planned: TransformPlan
) -> tuple[Archive, TransformPlan]:
    """Transform the records of the plan. Returns the staging archive, and the plan with the counts of changes."""
    transform = request.transform
    assert transform is not None, "a plan with a transformation comes of a request for one"  # noqa: S101 - our own mistake
    archive.storage.delete(stagings_done(archive.storage))
    work.tell("transforming")
    staging = Staging(
        source=archive,
        url=planned.staging,
        storage=work.config.storage,
        transform=transform,
        since_ms=request.since_ms,
        until_ms=request.until_ms,
    )
    staged = staging.run(
        session,
        sources_of(plan),
        parallelism=parallelism_of(work.config.spark.master, session),
        on_progress=work.on_progress,
        stop=work.stop,
    )
    return staged, replace(planned, topics=changes_in(staged))


def as_staged(request: RestoreRequest, planned: TransformPlan) -> RestoreRequest:
    """The request for staged records. If timestamps are rewritten, `since` and `until` have already been applied."""
    return replace(request, since_ms=None, until_ms=None) if "timestamp" in planned.fields else request


def open_staged(url: str, storage: StorageConfig) -> Archive:
    """The staging archive of a restore that has a stored plan. RefusedError: it is gone."""
    try:
        return open_native(url, storage)
    except UsageError as error:
        raise RefusedError(
            "the staged records of this restore are gone",
            operation="restore",
            object_name=url,
            hint="delete what was restored so far, and restore again",
        ) from error


def changes_in(staged: Archive) -> tuple[Changes, ...]:
    """The counts of changes by topic, over all waves."""
    return add_changes(Changes(**changes) for run in staged.catalog.runs() for changes in run.statistics[_CHANGES])


def clear_staging(config: Config, planned: TransformPlan) -> str | None:
    """Remove the staging archive once all is restored. Returns a warning if that fails: the restore is complete."""
    try:
        remove_staged(planned.staging, config.storage)
    except MaxbrodError as error:
        return f"the staged records could not be removed: {error}"
    return None


def remove_staged(url: str, storage: StorageConfig) -> None:
    """Remove the catalog last: as long as it exists, what is left can be found."""
    # Also the keys, which an encrypted archive does not list.
    place = open_plain(url, storage)
    paths = [info.path for info in place.list()]
    place.delete([path for path in paths if not path.startswith("catalog/")])
    place.delete([path for path in paths if path.startswith("catalog/")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """An archive, which is only read, and the place where its transformed records are staged."""

    source: Archive
    url: str
    storage: StorageConfig
    transform: Transform
    since_ms: int | None
    until_ms: int | None

    def run(
        self,
        session: Session,
        sources: Sequence[Source],
        *,
        parallelism: int,
        on_progress: OnProgress,
        stop: threading.Event,
        commit_bytes: int = COMMIT_BYTES,
    ) -> Archive:
        """Stage the requested offsets that are not staged yet, wave by wave."""
        # There is no other writer: the folder has the id of the restore, which one process at a time carries out.
        target = open_for_writing(self.url, self.storage, single_writer=True)
        asked = {source.id: (source.asked_first, source.asked_end) for source in sources}
        lost = {source.id: {one.end: one for one in source.lost} for source in sources}
        ends = {partition: position.end_offset for partition, position in target.catalog.positions().items()}
        parts = [
            piece
            for part in self._parts(asked, revisions_of(sources))
            for piece in _left(part, ends.get(part.id), asked[part.id], self.url)
        ]
        meter = Meter(on_progress, "transforming", sum(part.bytes for part in parts))
        for wave in waves(parts, commit_bytes):
            if stop.is_set():
                raise UnavailableError("the restore was stopped", operation="restore")
            self._transform(session, target, wave, asked, ends, lost, parallelism=parallelism, meter=meter, stop=stop)
        return target

    def _parts(self, asked: Mapping[PartitionId, tuple[int, int]], revisions: Revisions) -> Iterator[ConvertPart]:
        table = self.source.catalog.rows(topic_ids={place.topic_id for place in asked}, revisions=revisions)
        rows = decode_rows(table)
        kept = [row for row in rows if isinstance(row, Segment | Gap)]
        for (topic_id, partition), group in groupby(kept, key=lambda row: (row.topic_id, row.partition)):
            first, end = asked.get(PartitionId(topic_id=topic_id, partition=partition), (0, 0))
            found = tuple(row for row in group if row.end_offset > first and row.base_offset < end)
            if found:
                yield ConvertPart(topic=found[0].topic, topic_id=topic_id, partition=partition, rows=found)

    def _transform(
        self,
        session: Session,
        target: Archive,
        wave: Sequence[ConvertPart],
        asked: Mapping[PartitionId, tuple[int, int]],
        ends: dict[PartitionId, int],
        lost: Mapping[PartitionId, Mapping[int, UnreadableRange]],
        *,
        parallelism: int,
        meter: Meter,
        stop: threading.Event,
    ) -> None:
        """Transform one wave, without what is `lost`, and commit it. `ends`, where staged partitions end, move on."""
        started_at = now_ms()
        run_id = new_run_id()
        settings = TransferSettings(
            run_id=run_id,
            source_url=self.source.url,
            source=self.source.options,
            target_url=target.url,
            target=self.storage,
            shown=tuple(shown_for(self.transform.text)),
            since_ms=self.since_ms,
            until_ms=self.until_ms,
        )
        items = [
            (part, _item(part, asked[part.id], ends.get(part.id), lost[part.id], self.source.erasures()))
            for part in shares(wave, parallelism)
        ]
        tasks = spread([(part.bytes, item) for part, item in items], parallelism)
        meter.begin(len(tasks), sum(part.bytes for part in wave))
        answers = run_transform_job(session, settings, self.transform, tasks, meter=meter, stop=stop)
        failures = [answer.failure for answer in answers if answer.failure is not None]
        if failures:
            raise failures[0]
        found = {key_of(answer): answer for answer in answers}
        rows: list[Segment | Gap | Run] = []
        for part, item in items:
            rows += _rows(part, item, found[key_of(item)], run_id)
            ends[part.id] = item.end
        changes = frame.changes_in(answers)
        run = Run(
            run_id=run_id,
            started_at=started_at,
            finished_at=now_ms(),
            snapshot=None,
            statistics={_CHANGES: [asdict(change) for change in changes]},
            written_at=now_ms(),
        )
        target.catalog.commit([*rows, run])


def _left(part: ConvertPart, end: int | None, asked: tuple[int, int], url: str) -> Iterator[ConvertPart]:
    """The rest of a part that is staged up to `end`."""
    if end is None:
        yield part
        return
    if end > max(asked[1], part.end):
        raise RefusedError(
            f"records are staged up to offset {end}, but the archive now ends at {asked[1]}",
            operation="restore",
            object_name=f"{url} {part.where}",
            hint="the archive has changed since the restore was started: delete the staging folder, and restore again",
        )
    left = part.after(end)
    if left.rows and end < asked[1]:
        yield left


def _item(
    part: ConvertPart,
    asked: tuple[int, int],
    end: int | None,
    lost: Mapping[int, UnreadableRange],
    erasures: Erasures,
) -> TransferItem:
    """The offsets of a part to transform now. Its first and its last row may reach beyond them."""
    slices = (sound_part(erasures.slice_of(row), lost) for row in part.rows if isinstance(row, Segment))
    return TransferItem(
        where=part.where,
        topic_id=part.topic_id,
        start=max(asked[0], part.rows[0].base_offset, end or 0),
        end=min(asked[1], part.end),
        slices=tuple(piece for piece in slices if piece is not None),
    )


def _rows(part: ConvertPart, item: TransferItem, done: Transferred, run_id: str) -> list[Segment | Gap]:
    clipped = [
        replace(row, base_offset=max(row.base_offset, item.start), end_offset=min(row.end_offset, item.end))
        for row in part.rows
    ]
    return convert_rows(clipped, done.slices, run_id=run_id, written_at=now_ms(), otherwise=GapReason.PRUNED)

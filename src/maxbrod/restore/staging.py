"""Transformed records on their way into a cluster: an archive of our own that a restore makes first, and removes.

All of it is there before the first record goes to the cluster, so that a restore which goes on after a crash meets the
same records, whatever the expressions would say a second time. Every commit brings the rows of a wave together with
what it has changed: what is committed is not transformed again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from maxbrod.archive.opening import RESTORES, open_for_writing, open_native
from maxbrod.catalog.rows import Gap, Run, Segment, decode_rows, slice_of
from maxbrod.catalog.run_ids import new_run_id
from maxbrod.convert.plan.parts import ConvertPart, shares, waves
from maxbrod.convert.plan.rows import convert_rows
from maxbrod.engine.progress import Progress
from maxbrod.engine.windows import spread
from maxbrod.errors import RefusedError, UnavailableError, UsageError, error_of
from maxbrod.layouts.travelling import decode_slice
from maxbrod.model import GapReason, PartitionId, now_ms
from maxbrod.restore.plan.sources import revisions_of, sound_part
from maxbrod.restore.staged_objects import STAGED
from maxbrod.storage.opening import open_storage
from maxbrod.storage.overlay import OWN_FOLDER
from maxbrod.transfer.task import TransferItem
from maxbrod.transform.columns import shown_for
from maxbrod.transform.job import run_transform_job
from maxbrod.transform.plan import add_changes, changes_of
from maxbrod.transform.task import TransformSettings

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.archive.opening import Archive
    from maxbrod.catalog.replaced import Revisions
    from maxbrod.config import StorageConfig
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session
    from maxbrod.restore.plan.sources import Source, UnreadableRange
    from maxbrod.transform.plan import Changes, Transform
    from maxbrod.transform.task import Transformed

COMMIT_BYTES: Final = 4 << 30
_CHANGES: Final = "changes"


def staging_url(archive: Archive, restore_id: str, wanted: str | None) -> str:
    """Where the records of a restore are staged: beside what it remembers, or in a folder of the place wanted for."""
    if wanted is not None:
        return f"{wanted.rstrip('/')}/{restore_id}"
    own = "" if archive.survey is None else f"{OWN_FOLDER}/"
    return f"{archive.url}/{own}{RESTORES}/{restore_id}/{STAGED}"


def open_staged(url: str, storage: StorageConfig) -> Archive:
    """What was staged whole before a restore began. RefusedError: it is gone."""
    try:
        return open_native(url, storage)
    except UsageError as error:
        raise RefusedError(
            "the transformed records that this restore has begun with are gone",
            operation="restore",
            object_name=url,
            hint="delete what was restored so far, and begin anew",
        ) from error


def changes_in(staged: Archive) -> tuple[Changes, ...]:
    """By topic, of all waves."""
    return add_changes(changes_of(each) for run in staged.catalog.runs() for each in run.statistics[_CHANGES])


def remove_staged(url: str, storage: StorageConfig) -> None:
    """The catalog last: as long as it is there, what is left can be found."""
    place = open_storage(url, storage)
    paths = [each.path for each in place.list()]
    place.delete([path for path in paths if not path.startswith("catalog/")])
    place.delete([path for path in paths if path.startswith("catalog/")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """One archive and the place where records of it are staged. `source` is looked at, never changed."""

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
        """Stage what is not staged yet of the offsets that are asked for, wave by wave."""
        # Nobody else writes there: its name is the restore's, which is one process's at a time.
        target = open_for_writing(self.url, self.storage, single_writer=True)
        sources = list(sources)
        wanted = {each.id: (each.asked_first, each.asked_end) for each in sources}
        lost = {each.id: {one.end: one for one in each.lost} for each in sources}
        ends = {each: position.end_offset for each, position in target.catalog.positions().items()}
        parts = [
            each
            for part in self._parts(wanted, revisions_of(sources))
            for each in _left(part, ends.get(part.id), wanted[part.id], self.url)
        ]
        total, done = sum(part.bytes for part in parts), 0
        for wave in waves(parts, commit_bytes):
            if stop.is_set():
                raise UnavailableError("nobody waits for it any more", operation="restore")
            on_progress(Progress(phase="transforming", bytes_done=done, bytes_total=total))
            self._transform(session, target, wave, wanted, ends, lost, parallelism=parallelism, stop=stop)
            done += sum(part.bytes for part in wave)
        return target

    def _parts(self, wanted: Mapping[PartitionId, tuple[int, int]], revisions: Revisions) -> Iterator[ConvertPart]:
        ids = {each.topic_id for each in wanted}
        table = self.source.catalog.rows(topic_id=ids.pop() if len(ids) == 1 else None, revisions=revisions)
        rows = decode_rows(table)
        kept = [row for row in rows if isinstance(row, Segment | Gap)]
        for (topic_id, partition), group in groupby(kept, key=lambda row: (row.topic_id, row.partition)):
            first, end = wanted.get(PartitionId(topic_id=topic_id, partition=partition), (0, 0))
            found = tuple(row for row in group if row.end_offset > first and row.base_offset < end)
            if found:
                yield ConvertPart(topic=found[0].topic, topic_id=topic_id, partition=partition, rows=found)

    def _transform(
        self,
        session: Session,
        target: Archive,
        wave: Sequence[ConvertPart],
        wanted: Mapping[PartitionId, tuple[int, int]],
        ends: dict[PartitionId, int],
        lost: Mapping[PartitionId, Mapping[int, UnreadableRange]],
        *,
        parallelism: int,
        stop: threading.Event,
    ) -> None:
        """One commit. `ends`, up to where partitions are staged, go on with it. What is `lost` is left out."""
        started_at = now_ms()
        run_id = new_run_id()
        settings = TransformSettings(
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
            (part, _item(part, wanted[part.id], ends.get(part.id), lost[part.id])) for part in shares(wave, parallelism)
        ]
        tasks = spread([(part.bytes, item) for part, item in items], parallelism)
        answers = run_transform_job(session, settings, self.transform, tasks, stop=stop)
        failures = [each.failure for each in answers if each.failure is not None]
        if failures:
            raise error_of(failures[0])
        found = {(each.topic_id, each.partition, each.start): each for each in answers}
        rows: list[Segment | Gap | Run] = []
        for part, item in items:
            rows += _rows(part, item, found[part.topic_id, part.partition, item.start], run_id)
            ends[part.id] = item.end
        changes = add_changes(each.changes for each in answers)
        run = Run(
            run_id=run_id,
            started_at=started_at,
            finished_at=now_ms(),
            snapshot=None,
            statistics={_CHANGES: [asdict(each) for each in changes]},
            written_at=now_ms(),
        )
        target.catalog.commit([*rows, run])


def _left(part: ConvertPart, end: int | None, wanted: tuple[int, int], url: str) -> Iterator[ConvertPart]:
    """What of it is not staged yet, where it is staged up to `end`."""
    if end is None:
        yield part
        return
    if end > max(wanted[1], part.end):
        raise RefusedError(
            f"staged up to offset {end} already, where the archive ends at {wanted[1]} now",
            operation="restore",
            object_name=f"{url} {part.where}",
            hint="the archive has changed since this was begun: delete the staging folder, and begin anew",
        )
    left = part.after(end)
    if left.rows and end < wanted[1]:
        yield left


def _item(
    part: ConvertPart, wanted: tuple[int, int], end: int | None, lost: Mapping[int, UnreadableRange]
) -> TransferItem:
    """The offsets of a part that are transformed now: its first and its last row may reach beyond them."""
    slices = (sound_part(slice_of(row), lost) for row in part.rows if isinstance(row, Segment))
    return TransferItem(
        where=part.where,
        topic_id=part.topic_id,
        start=max(wanted[0], part.rows[0].base_offset, end or 0),
        end=min(wanted[1], part.end),
        survey="",
        slices=tuple(each for each in slices if each is not None),
    )


def _rows(part: ConvertPart, item: TransferItem, done: Transformed, run_id: str) -> list[Segment | Gap]:
    clipped = [
        replace(row, base_offset=max(row.base_offset, item.start), end_offset=min(row.end_offset, item.end))
        for row in part.rows
    ]
    slices = [decode_slice(fields) for fields in done.segments]
    return convert_rows(clipped, slices, run_id=run_id, written_at=now_ms(), otherwise=GapReason.PRUNED)

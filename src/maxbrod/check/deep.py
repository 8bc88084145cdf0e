"""The deep check: every byte of every slice is read again and compared with what the catalog says of it.

It goes in waves and remembers the slices that were sound, so that an interrupted check resumes. It keeps that list in
the user's cache and not in the archive, because a check needs no permission to write there.
"""

from __future__ import annotations

import hashlib
import os
import random
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from maxbrod.archive.selection import select_names
from maxbrod.cache import cache_dir
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.check.problems import Problem, ProblemKind, Verdict, verdict_of
from maxbrod.errors import UsageError
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.private_files import make_private, opened
from maxbrod.storage.stores import open_storage
from maxbrod.work.executor import Executor, Workers
from maxbrod.work.preflight import needs_storage
from maxbrod.work.progress import Meter, OnProgress, silent
from maxbrod.work.reach import Place

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from maxbrod.archive.archive import Archive
    from maxbrod.config import SparkConfig
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.work.session import Session


WAVE_BYTES: Final = 8 << 30
_TASK_BYTES: Final = 256 << 20
_SLICE_COST_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepCheckReport:
    """`skipped` slices were sound in an interrupted check; `chosen` are fewer than all slices in a sample."""

    archive: str
    version: int
    slices: int
    chosen: int
    skipped: int
    checked: int
    bytes_checked: int
    records_checked: int
    seed: int | None
    problems: tuple[Problem, ...]
    interrupted: bool = False

    @property
    def verdict(self) -> Verdict:
        return self.verdict_with(())

    def verdict_with(self, quick: Iterable[ProblemKind]) -> Verdict:
        """The verdict of this and the quick check together, which found problems of these kinds."""
        kinds = {*quick, *(problem.kind for problem in self.problems)}
        return verdict_of(kinds, deep=True, interrupted=self.interrupted)

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code


def deep_check(
    archive: Archive,
    spark: SparkConfig,
    patterns: Sequence[str] = (),
    *,
    sample: float = 1.0,
    seed: int | None = None,
    restart: bool = False,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    stop: threading.Event | None = None,
    wave_bytes: int = WAVE_BYTES,
) -> DeepCheckReport:
    """Read the slices of all topics, or of those that match. `sample` is the fraction to read, drawn by `seed`.

    An interrupted check resumes, unless `restart`; a sample always starts from the beginning.
    """
    if not 0 < sample <= 1:
        raise UsageError(f"a sample cannot be {sample:g} of an archive", hint="give --sample 5% or --sample 0.05")
    rows = _segments(archive, patterns)
    memory = SoundSlices.of(archive.url, patterns)
    if sample < 1:
        seed = random.randrange(1 << 32) if seed is None else seed  # noqa: S311 - no secret
        chosen, sound = _draw(rows, sample, seed), set()
    else:
        seed = None
        chosen, sound = rows, memory.forget() if restart else memory.read()
    waiting = [row for row in chosen if slice_name(row) not in sound]
    check = _DeepCheck(archive, Meter(on_progress, "checking", sum(row.raw_bytes for row in waiting)))
    if waiting:
        needs = needs_storage(archive.url, archive.options)
        with Workers(spark, needs=needs, session=session, on_progress=on_progress, stop=stop) as workers:
            executor = workers.for_bytes(sum(row.raw_bytes for row in waiting))
            for wave in _waves(waiting, wave_bytes):
                if stop is not None and stop.is_set():
                    check.interrupted = True
                    break
                damaged = check.run(executor, wave, _tasks(wave, executor.parallelism))
                if sample == 1:
                    memory.add(row for number, row in enumerate(wave) if number not in damaged)
    if sample == 1 and not check.interrupted:
        memory.forget()
    return DeepCheckReport(
        archive=archive.url,
        version=archive.catalog.version,
        slices=len(rows),
        chosen=len(chosen),
        skipped=len(chosen) - len(waiting),
        checked=len(check.checked),
        bytes_checked=sum(row.bytes for row in check.checked),
        records_checked=sum(row.records for row in check.checked),
        seed=seed,
        problems=tuple(check.problems),
        interrupted=check.interrupted,
    )


def _segments(archive: Archive, patterns: Sequence[str]) -> list[Segment]:
    # Replaced rows too: they are still read as of older runs. Rows of a new generation will be read.
    others = pa.concat_tables([archive.catalog.replaced(), archive.catalog.building()])
    names = {each["topic_id"]: each["topic"] for each in archive.catalog.topics().to_pylist()}
    names |= dict(zip(others["topic_id"].to_pylist(), others["topic"].to_pylist(), strict=True))
    chosen = select_names(set(names.values()), patterns)
    ids = {topic_id for topic_id, topic in names.items() if topic in chosen} if patterns else None
    tables = (archive.catalog.rows(topic_ids=ids), others)
    rows = (row for table in tables for row in decode_rows(table) if isinstance(row, Segment))
    return [row for row in rows if ids is None or row.topic_id in ids]


def _draw(rows: Sequence[Segment], sample: float, seed: int) -> list[Segment]:
    """At least one slice, if there is any. The same seed draws the same slices from the same archive."""
    count = min(len(rows), max(1, round(len(rows) * sample)))
    drawn = random.Random(seed).sample(range(len(rows)), count)  # noqa: S311 - no secret
    return [rows[number] for number in sorted(drawn)]


def _waves(rows: Sequence[Segment], wave_bytes: int) -> Iterator[list[Segment]]:
    wave: list[Segment] = []
    size = 0
    for row in rows:
        if wave and size + row.raw_bytes > wave_bytes:
            yield wave
            wave, size = [], 0
        wave.append(row)
        size += row.raw_bytes + _SLICE_COST_BYTES
    if wave:
        yield wave


@dataclass(slots=True)
class _DeepCheck:
    """A running check."""

    archive: Archive
    meter: Meter
    checked: list[Segment] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    interrupted: bool = False

    def run(self, executor: Executor, wave: Sequence[Segment], tasks: Sequence[list[tuple[int, Slice]]]) -> set[int]:
        """Read the slices of a wave; returns the numbers of the damaged ones."""
        self.meter.begin(len(tasks), sum(row.raw_bytes for row in wave))
        place = Place(url=self.archive.url, storage=self.archive.options)
        name = f"check-{uuid.uuid4().hex[:12]}"
        found = executor.run(verify_slices, place, tasks, name=name, on_done=self.meter.tasks_done)
        self.problems += [self._problem(wave[each.number], each) for each in found]
        self.checked += wave
        return {each.number for each in found if not each.limit}

    def _problem(self, row: Segment, found: SliceProblem) -> Problem:
        return Problem(
            kind=ProblemKind.LIMIT if found.limit else ProblemKind.DAMAGED,
            message=f"{found.message}, at offset {found.offset}",
            topic=row.topic,
            topic_id=row.topic_id,
            partition=row.partition,
            first_offset=row.base_offset,
            end_offset=row.end_offset,
            object_name=self.archive.storage.name_of(row.path),
            hint="its bytes are as they were written, and a restore takes them as they are"
            if found.limit
            else "check again; if the damage remains, restore the object from a copy or an older object version, or "
            "use 'maxbrod repair --deep'",
        )


def _tasks(wave: Sequence[Segment], parallelism: int) -> list[list[tuple[int, Slice]]]:
    """Neighbours in one task, because they often share an object; a few tasks for each core."""
    size = sum(row.raw_bytes + _SLICE_COST_BYTES for row in wave)
    share = min(_TASK_BYTES, max(1, -(-size // (3 * parallelism))))
    tasks: list[list[tuple[int, Slice]]] = []
    room = 0
    for number, row in sorted(enumerate(wave), key=lambda each: (each[1].path, each[1].position)):
        if room <= 0:
            tasks.append([])
            room = share
        tasks[-1].append((number, slice_of(row)))
        room -= row.raw_bytes + _SLICE_COST_BYTES
    return tasks


def slice_name(row: Segment) -> str:
    """Names a slice for ever, because objects never change."""
    return f"{row.path}\t{row.position}\t{row.bytes}\t{row.digest}"


@dataclass(frozen=True, slots=True)
class SoundSlices:
    """The slices that were sound since the check began: a file with a line for each."""

    file: Path

    @classmethod
    def of(cls, archive_url: str, patterns: Sequence[str]) -> SoundSlices:
        """The file for a check of these topics of this archive."""
        key = "\n".join([archive_url, *sorted(patterns)])
        return cls(cache_dir() / "checks" / hashlib.sha256(key.encode()).hexdigest()[:32])

    def read(self) -> set[str]:
        try:
            with opened(self.file, create=False) as file, os.fdopen(os.dup(file), encoding="utf-8") as stream:
                text = stream.read()
        except FileNotFoundError:
            return set()
        # A last line without its end was being written when the check was killed.
        return set(text[: text.rfind("\n") + 1].splitlines())

    def add(self, rows: Iterable[Segment]) -> None:
        make_private(self.file.parent)
        text = "".join(f"{slice_name(row)}\n" for row in rows)
        with opened(self.file, create=True) as file, os.fdopen(os.dup(file), "a", encoding="utf-8") as out:
            out.seek(0, os.SEEK_END)
            out.write(text)

    def forget(self) -> set[str]:
        """Delete the file; returns the slices known now, which are none."""
        self.file.unlink(missing_ok=True)
        return set()


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceProblem:
    """A damaged slice, or one over a limit. `number` is its index in the list that was given."""

    number: int
    offset: int
    message: str
    limit: bool = False
    """It is sound, but larger than what is looked into."""


def verify_slices(place: Place, slices: Sequence[tuple[int, Slice]]) -> list[SliceProblem]:
    """Verify numbered slices. A storage error ends the job: a slice that was not read may be sound or damaged."""
    storage = open_storage(place.url, place.storage)
    return [
        SliceProblem(number=number, offset=problem.offset, message=problem.message, limit=problem.limit)
        for number, stored in slices
        for problem in verify_slice(storage, stored)
    ]

"""The deep check: every byte of every slice is read again and compared with what the catalog says of it.

It goes in waves and remembers the slices that were sound, so that an interrupted check resumes. It keeps that list in
the user's cache and not in the archive, because a check needs no permission to write there.
"""

from __future__ import annotations

import hashlib
import os
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

import pyarrow as pa

from maxbrod.archive.selection import select_names
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.check.problems import Problem, ProblemKind, Verdict, verdict_of
from maxbrod.errors import UnavailableError, UsageError
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.kafka.slices import SliceProblem, verify_slice
from maxbrod.private_files import cache_dir, make_private, opened
from maxbrod.storage.stores import open_storage
from maxbrod.work.preflight import needs_storage
from maxbrod.work.reach import Place
from maxbrod.work.report import Report
from maxbrod.work.windows import cut_waves

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.work.work import Work

Item = TypeVar("Item")
Part = TypeVar("Part")
Found = TypeVar("Found")

WAVE_BYTES: Final = 8 << 30
_TASK_BYTES: Final = 256 << 20
_SLICE_COST_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepCheckReport(Report):
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
    published: ClassVar = ("verdict",)

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
    work: Work,
    archive: Archive,
    patterns: Sequence[str] = (),
    *,
    sample: float = 1.0,
    seed: int | None = None,
    restart: bool = False,
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
    checked: list[Segment] = []
    problems: list[Problem] = []
    for wave, found in in_waves(
        work, archive, waiting, verify_slices, _tasks, bytes_of=lambda row: row.raw_bytes, wave_bytes=wave_bytes
    ):
        checked += wave
        problems += [_problem(archive, wave[number], fault) for number, fault in found]
        if sample == 1:
            damaged = {number for number, fault in found if not fault.limit}
            memory.add(row for number, row in enumerate(wave) if number not in damaged)
    interrupted = len(checked) < len(waiting)
    if sample == 1 and not interrupted:
        memory.forget()
    return DeepCheckReport(
        archive=archive.url,
        version=archive.catalog.version,
        slices=len(rows),
        chosen=len(chosen),
        skipped=len(chosen) - len(waiting),
        checked=len(checked),
        bytes_checked=sum(row.bytes for row in checked),
        records_checked=sum(row.records for row in checked),
        seed=seed,
        problems=tuple(problems),
        interrupted=interrupted,
    )


def in_waves(
    work: Work,
    archive: Archive,
    items: Sequence[Item],
    task: Callable[[Place, Sequence[Part]], Iterable[Found]],
    tasks_of: Callable[[Sequence[Item], int], list[list[Part]]],
    *,
    bytes_of: Callable[[Item], int],
    wave_bytes: int = WAVE_BYTES,
) -> Iterator[tuple[list[Item], list[Found]]]:
    """Read items of an archive, and yield each wave with what its tasks have found. It ends early at a stop.

    `tasks_of` divides a wave into tasks, for so many cores.
    """
    if not items:
        return
    total = sum(map(bytes_of, items))
    executor = work.workers(needs_storage(archive.url, archive.options)).for_bytes(total)
    meter, place = work.meter("checking", total), Place(url=archive.url, storage=archive.options)
    for wave in cut_waves(items, bytes_of=lambda item: bytes_of(item) + _SLICE_COST_BYTES, bytes_max=wave_bytes):
        if work.is_stopped():
            return
        tasks = tasks_of(wave, executor.parallelism)
        meter.begin(len(tasks), sum(map(bytes_of, wave)))
        name = f"check-{uuid.uuid4().hex[:12]}"
        try:
            found = executor.run(task, place, tasks, name=name, meter=meter, stop=work.stop)
        except UnavailableError:
            if work.is_stopped():
                return
            raise
        yield wave, found


def _segments(archive: Archive, patterns: Sequence[str]) -> list[Segment]:
    # Replaced rows too: they are still read as of older runs. Rows of a new generation will be read.
    others = pa.concat_tables([archive.catalog.replaced(), archive.catalog.building()])
    names = {row["topic_id"]: row["topic"] for row in archive.catalog.topics().to_pylist()}
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


def _problem(archive: Archive, row: Segment, found: SliceProblem) -> Problem:
    return Problem(
        kind=ProblemKind.LIMIT if found.limit else ProblemKind.DAMAGED,
        message=f"{found.message}, at offset {found.offset}",
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        first_offset=row.base_offset,
        end_offset=row.end_offset,
        object_name=archive.storage.name_of(row.path),
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
    for number, row in sorted(enumerate(wave), key=lambda pair: (pair[1].path, pair[1].position)):
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


def verify_slices(place: Place, slices: Sequence[tuple[int, Slice]]) -> list[tuple[int, SliceProblem]]:
    """Verify numbered slices; returns problems with the numbers of their slices.

    A storage error ends the job: a slice that was not read may be sound or damaged.
    """
    storage = open_storage(place.url, place.storage)
    return [(number, problem) for number, stored in slices for problem in verify_slice(storage, stored)]

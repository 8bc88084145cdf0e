"""Whatever happens to rows between the two tasks, nothing is written that was not read, in its order. Without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.transform.plan import PREFIX
from maxbrod.transform.writer import write_task
from support.native_logs import data_batch
from support.stages import rows_of, task_of

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.transfer.task import Transferred

CHUNKS = [data_batch(0, 5) + data_batch(7, 5), data_batch(12, 3)]


def written(tmp_path: Path, change: object = None) -> Transferred:
    settings, payloads = task_of(tmp_path / "archive", tmp_path / "staged", CHUNKS)
    rows = rows_of(settings, payloads)
    changed = change(rows) if callable(change) else rows
    return write_task(settings, payloads, changed)[0]


def refusal_of(done: Transferred) -> str:
    assert done.failure is not None
    assert done.failure.exit_code == 5
    assert done.slices == ()
    return done.failure.message


def test_rows_that_come_as_they_went_are_written_at_their_offsets(tmp_path: Path) -> None:
    done = written(tmp_path)
    assert (done.failure, done.read, done.records, done.changed) == (None, 13, 13, {})
    assert (done.slices[0].base_offset, done.slices[-1].end_offset) == (0, 15)


def test_rows_in_another_order_are_never_written(tmp_path: Path) -> None:
    def turned(rows: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        return [rows[0].take([1, 0, *range(2, rows[0].num_rows)]), *rows[1:]]

    assert "offsets must rise" in refusal_of(written(tmp_path, turned))


def test_a_row_that_is_missing_is_never_overlooked(tmp_path: Path) -> None:
    assert "12 of 13 records" in refusal_of(written(tmp_path, lambda rows: [rows[0].slice(1), *rows[1:]]))
    assert "of 1" in refusal_of(written(tmp_path / "2", lambda rows: rows[:-1]))


def test_rows_of_several_tasks_are_never_mixed(tmp_path: Path) -> None:
    def another(rows: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        place, first = rows[0].schema.get_field_index(f"{PREFIX}task"), rows[0].slice(0, 1)
        other = pc.add(first.column(place), pa.scalar(1, pa.int32()))
        return [rows[0], first.set_column(place, f"{PREFIX}task", other), *rows[1:]]

    assert "several tasks" in refusal_of(written(tmp_path, another))


def test_damage_in_the_archive_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    settings, payloads = task_of(tmp_path / "archive", tmp_path / "staged", CHUNKS)
    for path in (tmp_path / "archive" / "segments").rglob("*.log"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    (done,) = write_task(settings, payloads, rows_of(settings, payloads))
    assert done.failure is not None
    assert (type(done.failure).__name__, done.failure.exit_code) == ("CorruptDataError", 4)
    assert not list((tmp_path / "staged").rglob("*.log"))

"""`maxbrod bench protect`: what protecting an archive costs.

A case is a function of the scale and the number of rounds; `CASES` names them all.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.encode import encode
from maxbrod.catalog.catalog import Catalog
from maxbrod.config import Config
from maxbrod.copy.verb import copy_archive
from maxbrod.storage.stores import open_storage
from maxbrod.work.work import Work
from maxbrod_bench.encryption import measure_encryption
from maxbrod_bench.erasure import measure_erasure
from maxbrod_bench.race import Figure, ProtectGroup, race_laps, require, speed
from maxbrod_bench.upkeep import write_segments

COPY_WANTED: Final = 0.8
_SEGMENTS: Final = 16
_SEGMENT_RECORDS: Final = 32_000
_RECORD_BYTES: Final = 1024


def measure(
    *, scale: float, rounds: int, only: Sequence[ProtectGroup] = (), on_stage: Callable[[str], None]
) -> list[Figure]:
    """Every group, or only those."""
    figures: list[Figure] = []
    for group in only or list(ProtectGroup):
        stage, case = CASES[group]
        on_stage(stage)
        figures += case(scale, rounds)
    return figures


def measure_copy(scale: float, rounds: int) -> list[Figure]:
    """A copy between two folders of one disk, beside `cat`; both sync every file. Each lap begins with an empty target.

    `cat` copies what is in the folder of segments. A copy also compares every slice with its digest, and writes a
    catalog.
    """
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as name:
        source = Path(name) / "source"
        size = _write(source, max(round(_SEGMENTS * scale), 1))
        targets = (Path(name) / f"target-{number}" for number in count())

        def copy() -> None:
            options = {"source": str(source), "target": str(next(targets))}
            with Work(Config.model_validate({"copies": options})) as work:
                report = copy_archive(work)
            require(report.exit_code == 0 and report.bytes >= size, "the copy is not complete")

        def cat() -> None:
            target = next(targets)
            files = sorted(path for path in (source / "segments").rglob("*") if path.is_file())
            for file in files:
                written = target / file.relative_to(source)
                written.parent.mkdir(parents=True, exist_ok=True)
                with written.open("wb") as out:
                    subprocess.run(["cat", str(file)], stdout=out, check=True)
                subprocess.run(["sync", str(written)], check=True)

        laps = race_laps({"copy": copy, "cat": cat}, rounds=rounds)
    note = f"{size / 1e6:,.0f} MB in {max(round(_SEGMENTS * scale), 1)} segments; every file is synced by both"
    return [speed("a copy, speed over cat and sync", laps["copy"], laps["cat"], wanted=COPY_WANTED, note=note)]


def _write(folder: Path, segments: int) -> int:
    """Write segments of one partition that do not compress; their bytes."""
    storage = open_storage(str(folder))
    catalog = Catalog.create(storage)
    noise = np.random.default_rng(1)
    rows = []
    for number in range(segments):
        first = number * _SEGMENT_RECORDS
        offsets = np.arange(first, first + _SEGMENT_RECORDS)
        values = [noise.bytes(_RECORD_BYTES) for _ in range(_SEGMENT_RECORDS)]
        records = {
            "offset": pa.array(offsets),
            "timestamp_ms": pa.array(offsets),
            "key": pa.nulls(_SEGMENT_RECORDS, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
        log = encode(pa.RecordBatch.from_pydict(records))
        rows += write_segments(
            storage, {0: log}, run_id=f"run-{number:06}", written_at=number, packed=False, codec="source"
        )
    catalog.commit(rows)
    return sum(row.bytes for row in rows)


CASES: Final[Mapping[ProtectGroup, tuple[str, Callable[[float, int], list[Figure]]]]] = {
    ProtectGroup.ENCRYPTION: ("a backup and a restore with keys and without", measure_encryption),
    ProtectGroup.COPY: ("a copy beside cat", measure_copy),
    ProtectGroup.ERASURE: ("one key out of many segments", measure_erasure),
}
"""The stage that each group is announced as, and what measures it."""

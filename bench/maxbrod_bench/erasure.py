"""Erasing one key from a thousand segments: how many of them are rewritten, and how long that takes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.encode import encode
from maxbrod.catalog.catalog import Catalog
from maxbrod.config import Config
from maxbrod.erase.verb import erase_archive
from maxbrod.model import Codec
from maxbrod.storage.stores import open_storage
from maxbrod.work.executor import LocalExecutor
from maxbrod.work.work import Work
from maxbrod_bench.race import Figure, at_most, race_laps, rate, require, seconds
from maxbrod_bench.upkeep import TOPIC, write_segments

_SEGMENTS: Final = 1000
_RECORDS: Final = 1000
_VALUE_BYTES: Final = 250
_WARM: Final = 2
"""People beyond those of the rounds: laps that do not count erase one, too."""
_HOLDING: Final = 10
"""The segments that hold the records of one person."""


def measure_erasure(scale: float, rounds: int) -> list[Figure]:
    """Each round erases another person, from the same archive, in this process."""
    segments = max(round(_SEGMENTS * scale), _HOLDING)
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        _write(folder, segments, rounds + _WARM)
        size = sum(path.stat().st_size for path in (Path(folder) / "segments").rglob("*.log*"))
        people = count()
        rewritten: list[int] = []

        def erase() -> None:
            options = {"topics": [TOPIC], "keys": [f"person-{next(people)}"]}
            config = Config.model_validate({"archive": folder, "erase": options})
            with Work(config, executor=LocalExecutor()) as work:
                report = erase_archive(work)
            require(report.exit_code == 0 and report.found_again == 0, "the erasure did not end well")
            require(report.records == _HOLDING, f"{report.records} records were erased instead of {_HOLDING}")
            rewritten.append(report.objects)

        laps = race_laps({"erase": erase}, rounds=rounds)["erase"]
    note = f"{segments:,} segments, {segments * _RECORDS:,} records in lz4, {size / 1e6:,.0f} MB"
    return [
        at_most("objects that erasing one key rewrites", max(rewritten), "objects", _HOLDING, note=note),
        seconds("erasing one key", laps, note=f"reads every record: {rate(segments * _RECORDS, laps)}"),
    ]


def _write(folder: str, segments: int, rounds: int) -> None:
    storage = open_storage(folder)
    catalog = Catalog.create(storage)
    rows = [
        row
        for number, log in enumerate(_logs(segments, rounds))
        for row in write_segments(storage, {0: log}, run_id=f"run-{number:06}", written_at=number, packed=False)
    ]
    catalog.commit(rows)


def _logs(segments: int, rounds: int) -> Iterator[np.ndarray]:
    """The log of each segment. Each person has one record in each of a few segments, others in the rest."""
    noise = np.random.default_rng(1)
    for number in range(segments):
        first = number * _RECORDS
        keys = [b"customer-%d" % customer for customer in noise.integers(0, 100_000, _RECORDS)]
        for person in range(rounds):
            if (number + person) % (segments // _HOLDING) == 0 and number // (segments // _HOLDING) < _HOLDING:
                keys[person] = b"person-%d" % person
        offsets = np.arange(first, first + _RECORDS)
        text = [b'{"customer": "%s", "text": "%s"}' % (key, key * (_VALUE_BYTES // len(key))) for key in keys]
        records = {
            "offset": pa.array(offsets),
            "timestamp_ms": pa.array(offsets),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(text, pa.binary()),
        }
        yield encode(pa.RecordBatch.from_pydict(records), codec=Codec.LZ4)

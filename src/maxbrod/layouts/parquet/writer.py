"""Writes segments that the tool's strict reader accepts: plain values, data pages of version 1, required fields.

A segment is written under its own name directly: our storages show an object whole or not at all, for which the tool
needs `temp/<uuid>` and a move. The name follows from the records, so a repeated write has the same name. If more
records have arrived in between, the two segments overlap, which every reader of this layout supports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from maxbrod.batch.columns import binary_column, headers_columns, number_column
from maxbrod.errors import UsageError
from maxbrod.layouts.foreign import ForeignSegment, Survey, WriteOptions, check_topic
from maxbrod.layouts.parquet import format as parquet
from maxbrod.model import TopicPartition
from maxbrod.storage.interface import Storage

CODECS: Final[dict[str, range]] = {"snappy": range(0), "gzip": range(1, 10), "zstd": range(1, 23), "none": range(0)}
"""The codecs that the tool can read, with their levels. It crashes on Parquet's others."""
_GZIP_LEVEL: Final = 6  # Arrow's default is 9, which is ten times slower and saves nothing
_OPTIONS: Final = frozenset({"prefix", "region", "segment_seconds_max"})
_OURS: Final = [name for name in parquet.FILE_SCHEMA.names if name not in parquet.TOOL_COLUMNS]


def write(
    storage: Storage, where: TopicPartition, records: Iterable[pa.RecordBatch], options: WriteOptions, survey: Survey
) -> list[ForeignSegment]:
    """Write one object after the other, each visible when it is complete."""
    check_options(options)
    compression = compression_of(options)
    folder, region = _place(where, options.extra.get("region"), survey, options.extra.get("prefix", parquet.PREFIX))
    written: list[ForeignSegment] = []
    for batches in roll(records, _thresholds(options), after=survey.positions.get(where, 0) - 1):
        first, last = batches[0].column("offset")[0].as_py(), batches[-1].column("offset")[-1].as_py()
        follows, deleted = _before(options, written[-1].end_offset if written else None)
        footer = parquet.Footer(
            name=parquet.SegmentName(folder=folder, where=where, level=parquet.STREAMING, start=first, end=last),
            region=region,
            records=sum(batch.num_rows for batch in batches),
            follows=follows,
            deleted=deleted,
        )
        written.append(_write_segment(storage, footer, batches, compression))
    return written


def _before(options: WriteOptions, written_to: int | None) -> tuple[int | None, int | None]:
    """Return `follows` and `deleted` of a segment's footer, which tell about the offsets before it."""
    if options.read_from is None or written_to is not None:
        return None if options.read_from is None else written_to, None
    follows, asked = options.read_from(), options.asked_from
    return follows, None if asked is None or asked >= follows else asked


def check_options(options: WriteOptions) -> None:
    """UsageError: an option is invalid."""
    compression_of(options)
    _thresholds(options)
    parquet.region_folder(options.extra.get("region", parquet.REGION), options.extra.get("prefix", parquet.PREFIX))
    unknown = sorted(set(options.extra) - _OPTIONS)
    if unknown:
        raise UsageError(f"the parquet layout has no option {', '.join(unknown)}", hint=f"it has {sorted(_OPTIONS)}")


def compression_of(options: WriteOptions) -> dict[str, Any]:
    """The codec and its level, as arguments of Arrow's writer."""
    codec = options.codec or "snappy"
    if codec not in CODECS:
        raise UsageError(f"the parquet layout has no codec {codec!r}", hint=f"choose one of {', '.join(CODECS)}")
    if options.level is not None and options.level not in CODECS[codec]:
        raise UsageError(f"{codec} has no level {options.level}")
    level = _GZIP_LEVEL if codec == "gzip" and options.level is None else options.level
    return {"compression": codec, "compression_level": level}


@contextmanager
def parquet_writer(sink: Any, compression: dict[str, Any]) -> Iterator[pq.ParquetWriter]:  # noqa: ANN401 - any file
    """A writer of FILE_SCHEMA. The footer's keys are added last, when the number of records is known."""
    with pq.ParquetWriter(
        sink,
        parquet.FILE_SCHEMA,
        version="1.0",
        data_page_version="1.0",
        use_dictionary=_OURS,  # the tool's own columns are plain
        store_schema=False,  # otherwise Arrow adds a key of its own to the eight
        write_statistics=["timestamp", "timestamp_beyond_ms"],
        write_page_checksum=True,
        **compression,
    ) as writer:
        yield writer


def segment_of(footer: parquet.Footer, size: int, bounds: tuple[int | None, int | None]) -> ForeignSegment:
    """Return a segment that has just been written, as a survey would."""
    name = footer.name
    return ForeignSegment(
        where=name.where,
        path=name.path,
        base_offset=name.start,
        end_offset=name.end + 1,
        records=footer.records,
        bytes=size,
        min_timestamp=bounds[0],
        max_timestamp=bounds[1],
        details={"region": footer.region, "level": name.level, "created": footer.created},
    )


def _write_segment(
    storage: Storage, footer: parquet.Footer, batches: Sequence[pa.RecordBatch], compression: dict[str, Any]
) -> ForeignSegment:
    table = pa.Table.from_batches([parquet.to_file(batch) for batch in batches])
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, compression) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
        writer.add_key_value_metadata(footer.keys())
    data = sink.getvalue()
    storage.replace(footer.name.path, memoryview(data))
    times = [number_column(batch.column("timestamp_ms")) for batch in batches]
    bounds = min(int(column.min()) for column in times), max(int(column.max()) for column in times)
    return segment_of(footer, data.size, bounds)


def _thresholds(options: WriteOptions) -> Thresholds:
    seconds = options.extra.get("segment_seconds_max")
    try:
        seconds_max = SECONDS_MAX if seconds is None else float(seconds)
    except ValueError as error:
        raise UsageError(f"segment_seconds_max is not a number: {seconds!r}") from error
    return Thresholds(
        bytes_max=BYTES_MAX if options.segment_bytes_max is None else options.segment_bytes_max,
        records_max=RECORDS_MAX if options.segment_records_max is None else options.segment_records_max,
        seconds_max=seconds_max,
    )


def _place(where: TopicPartition, requested: str | None, survey: Survey, prefix: str) -> tuple[str, str]:
    """Return the folder and the region for new segments: those of the archive, or `requested`.

    UsageError: the partition's records are in another region, or the region is ambiguous.
    """
    check_topic(where.topic)
    folders: Mapping[str, str] = survey.details.get("regions", {})
    region = _region(where, requested, survey, tuple(folders))
    if region in folders:
        return folders[region], region
    if "" in folders.values():
        raise UsageError(
            f"the storage is the folder of another region than {region}", hint="open the folder above the regions"
        )
    prefixes = {folder.rpartition("/")[0] for folder in folders.values()} or {prefix}
    return parquet.region_folder(region, prefixes.pop()), region


def _region(where: TopicPartition, requested: str | None, survey: Survey, regions: tuple[str, ...]) -> str:
    own = next((segment for segment in survey.segments if segment.where == where), None)
    if own is not None:
        region = str(own.details["region"])
        if requested not in {None, region}:
            raise UsageError(
                f"{where} is already in the archive, of region {region}",
                object_name=own.path,
                hint=f"use --layout-option region={region}, or write into another archive",
            )
        return region
    if requested is None and len(regions) > 1:
        raise UsageError(
            f"the archive has the regions {', '.join(regions)}",
            hint="choose the one to write to with --layout-option region=NAME",
        )
    return requested or next(iter(regions), parquet.REGION)


BYTES_MAX: Final = 64 << 20
"""The tool's default is 100 MiB. Segments are built in memory, several at a time."""
RECORDS_MAX: Final = 1_000_000
_FIXED_BYTES: Final = 16
SECONDS_MAX: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """A segment is complete when it reaches one of them. `seconds_max` counts from the arrival of its first record."""

    bytes_max: int = BYTES_MAX
    records_max: int = RECORDS_MAX
    seconds_max: float = SECONDS_MAX

    def __post_init__(self) -> None:
        if self.bytes_max < 1 or self.records_max < 1 or self.seconds_max <= 0:
            raise UsageError(f"a segment cannot be limited to {self}")


def roll(
    records: Iterable[pa.RecordBatch],
    thresholds: Thresholds,
    *,
    after: int = -1,
    clock: Callable[[], float] = monotonic,
) -> Iterator[list[pa.RecordBatch]]:
    """The records of one segment after the other, split by bytes, number and time.

    The bytes are those of `record_bytes`, before encoding and compression. A segment
    has at least one record, however large. UsageError: offsets do not rise from above `after`.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = held_records = 0
    began = clock()
    for batch in records:
        # Consumers never see control records, so the tool never writes them.
        control = batch.column("control")
        rest = batch.filter(pc.invert(control)) if batch.num_rows and number_column(control).any() else batch
        if rest.num_rows:
            after = _check_order(rest, after)
        while rest.num_rows:
            began = began if held else clock()
            sizes = np.cumsum(record_bytes(rest))
            room = (thresholds.bytes_max - held_bytes, thresholds.records_max - held_records)
            rows = min(int(np.searchsorted(sizes, room[0])) + 1, room[1], rest.num_rows)
            held.append(rest.slice(0, rows))
            held_bytes, held_records = held_bytes + int(sizes[rows - 1]), held_records + rows
            rest = rest.slice(rows)
            full = held_bytes >= thresholds.bytes_max or held_records >= thresholds.records_max
            if full or clock() - began >= thresholds.seconds_max:
                yield held
                held, held_bytes, held_records = [], 0, 0
    if held:
        yield held


def record_bytes(records: pa.RecordBatch) -> NDArray[np.int64]:
    """The size of each record as the tool counts it: offset, time, key, value, and keys and values of its headers."""
    sizes = np.full(records.num_rows, _FIXED_BYTES, np.int64)
    for name in ("key", "value"):
        sizes += np.diff(binary_column(records.column(name)).ends)
    ends, keys, values = headers_columns(records.column("headers"))
    for column in (keys, values):
        if column.valid.size:
            sizes += np.diff(column.ends[ends])
    return sizes


def _check_order(batch: pa.RecordBatch, after: int) -> int:
    offsets = number_column(batch.column("offset"))
    if offsets[0] <= after or (np.diff(offsets) <= 0).any():
        raise UsageError(
            f"records from offset {int(offsets[0])} on do not follow offset {after} in order",
            offset=int(offsets[0]),
            hint="continue after the last offset in the archive",
        )
    return int(offsets[-1])

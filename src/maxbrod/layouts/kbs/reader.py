"""Decodes a segment into records, batch by batch, each after its checksum is verified; and checks a backup."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.columns import project
from maxbrod.batch.compression import decompress
from maxbrod.batch.kernels import sealed
from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError, naming
from maxbrod.layouts.foreign import Fault, ForeignSegment, Survey
from maxbrod.layouts.found import Room, Stored
from maxbrod.layouts.kbs import format as kbs
from maxbrod.layouts.kbs import kernels
from maxbrod.layouts.kbs.kernels import combine, crc64
from maxbrod.layouts.kbs.survey import parse_partitions, read_header
from maxbrod.layouts.manifest import MANIFEST, BackupRef, check_segments, list_segments, other_size, read_document
from maxbrod.storage.interface import Storage


def read(storage: Storage, segment: ForeignSegment, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    schema = project(None if columns is None else list(columns))
    with naming(storage.name_of(segment.path)):
        stored = Stored(storage, segment.path)
        header = open_header(stored)
        if segment.records not in {None, header.records} or header.first_offset != segment.base_offset:
            raise CorruptDataError(
                f"the segment has {header.records} records from offset {header.first_offset} on, "
                f"and the manifest says {segment.records} from {segment.base_offset} on",
                offset=segment.base_offset,
            )
        yield from _records(stored, header, schema, segment.end_offset)


def open_header(stored: Stored) -> kbs.KbsHeader:
    if stored.size < kbs.HEADER_BYTES + kbs.FOOTER_BYTES:
        raise TruncatedDataError(f"a segment of {stored.size} bytes is shorter than header and footer")
    return kbs.decode_header(bytes(stored.range(0, kbs.HEADER_BYTES)))


def _records(stored: Stored, header: kbs.KbsHeader, schema: pa.Schema, end_offset: int) -> Iterator[pa.RecordBatch]:
    room, rows, checksum, next_offset = Room.of(0), 0, 0, header.first_offset
    for position, batch, data in _batches(stored):
        if zlib.crc32(data[kbs.BATCH_HEADER_BYTES :]) != batch.crc:
            raise CorruptDataError("a batch's checksum is wrong", offset=batch.base_offset, position=position)
        checksum = crc64(data, checksum)
        if batch.base_offset < next_offset or (not rows and batch.records and batch.base_offset != next_offset):
            raise CorruptDataError("a batch does not begin where it should", offset=next_offset, position=position)
        room = room.reserved(batch.records)
        block = _block(header, batch, data, position)
        status, record = kernels.scan(block, batch.base_offset, batch.records, room)
        if status != kernels.OK:
            message = f"{kernels.MEANING[status]}, at record {record} of a batch"
            raise CorruptDataError(message, offset=batch.base_offset, position=position)
        if batch.records:
            rows += batch.records
            next_offset = int(room.offset[batch.records - 1]) + 1
            if rows > header.records or next_offset > end_offset:
                break
            yield room.batch(block, batch.records, schema, kernels.scan_headers)
    if rows != header.records or next_offset > end_offset:
        raise CorruptDataError(
            f"the segment has {rows} records before offset {next_offset}, "
            f"and should have {header.records} before {end_offset}",
            offset=next_offset,
        )
    _check_footer(stored, header, checksum)


def _batches(stored: Stored) -> Iterator[tuple[int, kbs.BatchHeader, bytes]]:
    """The position of each batch, its header, and all of its bytes."""
    end = stored.size - kbs.FOOTER_BYTES
    stream, position = stored.stream(kbs.HEADER_BYTES, end), kbs.HEADER_BYTES
    while position < end:
        head = stream.read(kbs.BATCH_HEADER_BYTES)
        if len(head) < kbs.BATCH_HEADER_BYTES:
            raise TruncatedDataError(f"a batch's header has {len(head)} bytes", position=position)
        try:
            batch = kbs.decode_batch_header(head)
        except CorruptDataError as error:
            error.position = position
            raise
        if batch.stored_bytes > end - position - kbs.BATCH_HEADER_BYTES:
            raise TruncatedDataError(
                f"a batch of {batch.stored_bytes} bytes is cut", offset=batch.base_offset, position=position
            )
        yield position, batch, head + stream.read(batch.stored_bytes)
        position += kbs.BATCH_HEADER_BYTES + batch.stored_bytes


def _block(header: kbs.KbsHeader, batch: kbs.BatchHeader, data: bytes, position: int) -> NDArray[np.uint8]:
    packed = np.frombuffer(data, np.uint8)[kbs.BATCH_HEADER_BYTES :]
    try:
        block = decompress(header.codec.kafka, packed, bytes_max=max(batch.block_bytes, 1))
    except CorruptDataError as error:
        error.offset, error.position = batch.base_offset, position
        raise
    if block.size != batch.block_bytes:
        raise CorruptDataError(
            f"a batch decompresses to {block.size} bytes, not {batch.block_bytes}",
            offset=batch.base_offset,
            position=position,
        )
    return sealed(block)


def _check_footer(stored: Stored, header: kbs.KbsHeader, checksum: int) -> None:
    records, whole = kbs.FOOTER.unpack(stored.range(stored.size - kbs.FOOTER_BYTES, kbs.FOOTER_BYTES))
    if checksum != header.checksum:
        raise CorruptDataError(f"the checksum of the batches is {checksum:016x}, not {header.checksum:016x}")
    batches_bytes = stored.size - kbs.FOOTER_BYTES - kbs.HEADER_BYTES
    found = combine(crc64(kbs.encode_header(header)), checksum, batches_bytes)
    if records != header.records or found != whole:
        raise CorruptDataError(
            f"the footer says {records} records and checksum {whole:016x}, not {header.records} and {found:016x}",
            position=stored.size - kbs.FOOTER_BYTES,
        )


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    """Yield where a backup is not what its manifest says. Quick: names, sizes, counts. Deep: checksums and records."""
    backup = BackupRef.surveyed(survey)
    if backup is None:
        yield from survey.faults
        return
    objects = sorted(list_segments(storage, backup, kbs.SEGMENT))
    sizes = {path: size for _, _, path, size in objects}
    check_object = partial(_check_object, storage)
    yield from check_segments(storage, survey, sizes, check_object, _check_records if deep else None)
    yield from _check_counts(storage, backup, survey)
    named = {segment.path for segment in survey.segments}
    emptied = survey.details.get("emptied", {})
    for where, number, path, size in objects:
        if number < emptied.get(where.topic, {}).get(str(where.partition), 0):
            if size != kbs.EMPTY_BYTES:
                yield Fault(path=path, message="was pruned, and still takes space: prune again", fatal=False)
        elif path not in named:
            yield Fault(path=path, message="no manifest counts this segment", fatal=False)


def _check_object(storage: Storage, segment: ForeignSegment, size: int) -> Iterator[Fault]:
    if size != segment.bytes:
        yield other_size(segment, size)
        return
    try:
        header = read_header(storage, segment.path, size)
    except MaxbrodError as error:
        yield Fault(path=segment.path, message=error.message, offset=segment.base_offset)
        return
    if (header.first_offset, header.records) != (segment.base_offset, segment.records):
        message = f"the segment has {header.records} records from offset {header.first_offset} on"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset)


def _check_records(storage: Storage, segment: ForeignSegment) -> Sequence[Fault]:
    for _ in read(storage, segment, ["offset"]):
        pass  # reading compares every checksum and count
    return ()


def _check_counts(storage: Storage, backup: BackupRef, survey: Survey) -> Iterator[Fault]:
    """Compares the manifest's own sums with the segments."""
    path = backup.path(MANIFEST)
    if survey.details.get("rebuilt"):
        return
    try:
        manifest = read_document(storage, path)
        topics = [] if manifest is None else manifest.objects("topics")
        entries = [entry for topic in topics for entry in parse_partitions(topic)]
    except MaxbrodError:
        return  # a fault of the survey
    for entry in entries:
        held = [segment for segment in survey.segments if segment.where == entry.where]
        records = sum(segment.records or 0 for segment in held)
        first = held[0].base_offset if held else entry.first_offset
        if (records, first) != (entry.records, entry.first_offset):
            message = (
                f"{entry.where} has {entry.records} records from offset {entry.first_offset} on by the manifest, "
                f"and {records} from {first} on by its segments"
            )
            yield Fault(path=path, message=message, offset=first, fatal=records < entry.records)

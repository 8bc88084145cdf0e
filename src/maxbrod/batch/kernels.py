"""The compiled loops: everything that touches single records of a batch of magic 2.

Rules that keep damaged or hostile bytes harmless: every position is compared with its end before it is read; every
loop moves forward; nothing is allocated here. A kernel returns a status and where it stopped; `failure` makes that an
error with names in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from maxbrod.errors import CorruptDataError, MaxbrodError, RefusedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders

OK: Final = 0
BAD_VARINT: Final = 1
BAD_LENGTH: Final = 2
BAD_OFFSET_DELTA: Final = 3
BAD_COUNT: Final = 4
BAD_HEADER: Final = 5
TOO_LARGE: Final = 6

MEANING: Final = {
    BAD_VARINT: "a number in a record extends past its end",
    BAD_LENGTH: "the length of a record disagrees with its content",
    BAD_OFFSET_DELTA: "the offset of a record lies outside its batch or does not rise",
    BAD_COUNT: "the batch holds more bytes than its records",
    BAD_HEADER: "a header of a record has an impossible length",
    TOO_LARGE: "the records need more than 2 GiB of one Arrow column",
}

INT32_MAX: Final = (1 << 31) - 1
_CHECKED: Final = bool(config.BOUNDSCHECK)


def sealed(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view. All kernel inputs are read-only, or numba would compile each kernel again for writable ones."""
    view = array.view()
    view.flags.writeable = False
    return view


def failure(meaning: str, headers: BatchHeaders, row: int, where: str, status: int) -> MaxbrodError:
    offset, position = int(headers["base_offset"][row]), int(headers.position[row])
    if status == TOO_LARGE:
        return RefusedError(meaning, offset=offset, position=position, hint="decode fewer batches at a time")
    return CorruptDataError(
        f"{meaning}: {where}",
        offset=offset,
        position=position,
        hint="if the checksum is right, the writer of the batch produced these bytes",
    )


@intrinsic
def _memcpy(typingctx: Any, dst: Any, dst_at: Any, src: Any, src_at: Any, count: Any) -> Any:  # noqa: ARG001 - types
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, target_at, source, source_at, length = args
        to = context.make_array(signature.args[0])(context, builder, target).data
        origin = context.make_array(signature.args[2])(context, builder, source).data
        cgutils.raw_memcpy(builder, builder.gep(to, [target_at]), builder.gep(origin, [source_at]), length, 1)
        return context.get_dummy_value()

    return types.void(dst, types.int64, src, types.int64, types.int64), codegen


@njit(cache=True, nogil=True, inline="always")
def copy_bytes(dst, dst_at, src, src_at, count):
    """Copy by memcpy: for values of a few hundred bytes a loop over bytes costs several times as much.

    With NUMBA_BOUNDSCHECK=1 it is a loop, because numba cannot check memcpy.
    """
    if _CHECKED:
        for i in range(count):
            dst[dst_at + i] = src[src_at + i]
    else:
        _memcpy(dst, dst_at, src, src_at, count)


@njit(cache=True, nogil=True, inline="always")
def read_varint(data, at, end):
    """A zig-zag number and the position after it, which is -1 if the number passes `end` or has over 10 bytes."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        raw |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@njit(cache=True, nogil=True, inline="always")
def varint_bytes(value):
    raw = (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> 63)
    size = 1
    while raw >= 0x80:
        raw >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True, inline="always")
def write_varint(out, at, value):
    raw = (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> 63)
    while raw >= 0x80:
        out[at] = np.uint8((raw & np.uint64(0x7F)) | np.uint64(0x80))
        at += 1
        raw >>= np.uint64(7)
    out[at] = np.uint8(raw)
    return at + 1


@njit(cache=True, nogil=True)
def scan(
    buffer,
    arena,
    in_arena,
    starts,
    ends,
    base_offset,
    last_offset_delta,
    base_timestamp,
    fixed_timestamp,
    count,
    offset,
    timestamp,
    key_at,
    key_valid,
    value_at,
    value_valid,
    header_at,
    key_ends,
    value_ends,
    header_ends,
):
    """Locate and check every field of every record.

    The first value of the `ends` arrays is set by the caller: this may be one group of many.
    Returns (status, batch, record of the batch, header key bytes, header value bytes).
    """
    row = 0
    key_total = np.int64(key_ends[0])
    value_total = np.int64(value_ends[0])
    header_total = np.int64(header_ends[0])
    header_key_bytes = np.int64(0)
    header_value_bytes = np.int64(0)
    for batch in range(len(starts)):
        data = arena if in_arena[batch] else buffer
        at = starts[batch]
        end = ends[batch]
        delta_before = np.int64(-1)
        for record in range(count[batch]):
            length, at = read_varint(data, at, end)
            if at < 0:
                return BAD_VARINT, batch, record, 0, 0
            if length < 6 or length > end - at:
                return BAD_LENGTH, batch, record, 0, 0
            stop = at + length
            time_delta, at = read_varint(data, at + 1, stop)
            if at < 0:
                return BAD_VARINT, batch, record, 0, 0
            delta, at = read_varint(data, at, stop)
            if at < 0:
                return BAD_VARINT, batch, record, 0, 0
            if delta <= delta_before or delta > last_offset_delta[batch]:
                return BAD_OFFSET_DELTA, batch, record, 0, 0
            delta_before = delta

            size, at = read_varint(data, at, stop)
            if at < 0:
                return BAD_VARINT, batch, record, 0, 0
            if size < -1 or size > stop - at:
                return BAD_LENGTH, batch, record, 0, 0
            key_at[row] = at
            key_valid[row] = size >= 0
            if size > 0:
                key_total += size
                at += size

            size, at = read_varint(data, at, stop)
            if at < 0:
                return BAD_VARINT, batch, record, 0, 0
            if size < -1 or size > stop - at:
                return BAD_LENGTH, batch, record, 0, 0
            value_at[row] = at
            value_valid[row] = size >= 0
            if size > 0:
                value_total += size
                at += size

            headers, at = read_varint(data, at, stop)
            if at < 0:
                return BAD_VARINT, batch, record, 0, 0
            # A header has at least two bytes, so this bounds the loop by the bytes present.
            if headers < 0 or headers > (stop - at) // 2:
                return BAD_HEADER, batch, record, 0, 0
            header_at[row] = at
            for _ in range(headers):
                size, at = read_varint(data, at, stop)
                if at < 0:
                    return BAD_VARINT, batch, record, 0, 0
                if size < 0 or size > stop - at:
                    return BAD_HEADER, batch, record, 0, 0
                header_key_bytes += size
                at += size
                size, at = read_varint(data, at, stop)
                if at < 0:
                    return BAD_VARINT, batch, record, 0, 0
                if size < -1 or size > stop - at:
                    return BAD_HEADER, batch, record, 0, 0
                if size > 0:
                    header_value_bytes += size
                    at += size
            header_total += headers
            if at != stop:
                return BAD_LENGTH, batch, record, 0, 0
            if max(key_total, value_total, header_total, header_key_bytes, header_value_bytes) > INT32_MAX:
                return TOO_LARGE, batch, record, 0, 0

            offset[row] = base_offset[batch] + delta
            timestamp[row] = base_timestamp[batch] if fixed_timestamp[batch] else base_timestamp[batch] + time_delta
            key_ends[row + 1] = key_total
            value_ends[row + 1] = value_total
            header_ends[row + 1] = header_total
            row += 1
        if at != end:
            return BAD_COUNT, batch, np.int64(count[batch]), 0, 0
    return OK, 0, 0, header_key_bytes, header_value_bytes


@njit(cache=True, nogil=True)
def gather(buffer, arena, in_arena, count, part_at, part_ends, out):
    """Gather one field of every record (the keys or the values)."""
    row = 0
    for batch in range(len(count)):
        data = arena if in_arena[batch] else buffer
        for _ in range(count[batch]):
            to = np.int64(part_ends[row])
            copy_bytes(out, to, data, part_at[row], np.int64(part_ends[row + 1]) - to)
            row += 1


@njit(cache=True, nogil=True)
def gather_headers(
    buffer,
    arena,
    in_arena,
    count,
    header_at,
    header_ends,
    key_ends,
    key_out,
    value_ends,
    value_valid,
    value_out,
):
    """Gather the header keys and values. Reads only positions that `scan` has checked."""
    row = 0
    header = 0
    for batch in range(len(count)):
        data = arena if in_arena[batch] else buffer
        end = np.int64(len(data))
        for _ in range(count[batch]):
            at = header_at[row]
            for _ in range(header_ends[row + 1] - header_ends[row]):
                size, at = read_varint(data, at, end)
                to = np.int64(key_ends[header])
                copy_bytes(key_out, to, data, at, size)
                key_ends[header + 1] = to + size
                at += size
                size, at = read_varint(data, at, end)
                value_valid[header] = size >= 0
                size = max(size, np.int64(0))
                to = np.int64(value_ends[header])
                copy_bytes(value_out, to, data, at, size)
                value_ends[header + 1] = to + size
                at += size
                header += 1
            row += 1


@njit(cache=True, nogil=True, inline="always")
def _length(column, row):
    return np.int64(column.ends[row + 1]) - np.int64(column.ends[row]) if column.valid[row] else np.int64(-1)


@njit(cache=True, nogil=True)
def measure(
    offset, timestamp, key, value, header_ends, header_key, header_value, forced, records_bytes_max, begins, length
):
    """Divide the records into batches: `begins` marks the first record of each batch, `length` is each record's size.

    Keys, values and headers are `BinaryColumn`s. Returns the total size of all records, including their length fields.
    """
    total = np.int64(0)
    in_batch = np.int64(0)
    first_offset = np.int64(0)
    first_timestamp = np.int64(0)
    for row in range(len(offset)):
        key_bytes = _length(key, row)
        value_bytes = _length(value, row)
        headers = np.int64(header_ends[row + 1]) - np.int64(header_ends[row])
        fixed = 1 + varint_bytes(key_bytes) + max(key_bytes, np.int64(0))
        fixed += varint_bytes(value_bytes) + max(value_bytes, np.int64(0))
        fixed += varint_bytes(headers)
        for header in range(header_ends[row], header_ends[row + 1]):
            size = _length(header_key, header)
            fixed += varint_bytes(size) + size
            size = _length(header_value, header)
            fixed += varint_bytes(size) + max(size, np.int64(0))
        begin = row == 0 or forced[row] or offset[row] <= offset[row - 1] or offset[row] - first_offset > INT32_MAX
        if not begin:
            body = fixed + varint_bytes(timestamp[row] - first_timestamp) + varint_bytes(offset[row] - first_offset)
            begin = in_batch + varint_bytes(body) + body > records_bytes_max
        if begin:
            body = fixed + 2
            in_batch = np.int64(0)
            first_offset = offset[row]
            first_timestamp = timestamp[row]
        begins[row] = begin
        length[row] = body
        in_batch += varint_bytes(body) + body
        total += varint_bytes(body) + body
    return total


@njit(cache=True, nogil=True)
def write(offset, timestamp, key, value, header_ends, header_key, header_value, length, starts, gap, out, out_starts):
    """Write the records of every batch after `gap` bytes for its header. `out_starts` receives the batch starts."""
    at = np.int64(0)
    for batch in range(len(starts) - 1):
        out_starts[batch] = at
        at += gap
        first_offset = offset[starts[batch]]
        first_timestamp = timestamp[starts[batch]]
        for row in range(starts[batch], starts[batch + 1]):
            at = write_varint(out, at, length[row])
            out[at] = 0
            at = write_varint(out, at + 1, timestamp[row] - first_timestamp)
            at = write_varint(out, at, offset[row] - first_offset)
            size = _length(key, row)
            at = write_varint(out, at, size)
            if size > 0:
                copy_bytes(out, at, key.data, np.int64(key.ends[row]), size)
                at += size
            size = _length(value, row)
            at = write_varint(out, at, size)
            if size > 0:
                copy_bytes(out, at, value.data, np.int64(value.ends[row]), size)
                at += size
            at = write_varint(out, at, np.int64(header_ends[row + 1]) - np.int64(header_ends[row]))
            for header in range(header_ends[row], header_ends[row + 1]):
                size = _length(header_key, header)
                at = write_varint(out, at, size)
                copy_bytes(out, at, header_key.data, np.int64(header_key.ends[header]), size)
                at += size
                size = _length(header_value, header)
                at = write_varint(out, at, size)
                if size > 0:
                    copy_bytes(out, at, header_value.data, np.int64(header_value.ends[header]), size)
                    at += size
    out_starts[len(starts) - 1] = at


@njit(cache=True, nogil=True)
def lowest_timestamps(buffer, arena, in_arena, starts, ends, base_timestamp, count, out, sound):
    """Find the lowest timestamp of each batch. Only lengths and timestamps are read.

    `sound` becomes false for a batch whose record lengths do not add up.
    """
    for batch in range(len(starts)):
        data = arena if in_arena[batch] else buffer
        at = starts[batch]
        end = ends[batch]
        base = base_timestamp[batch]
        best = np.int64(9223372036854775807)
        for _ in range(count[batch]):
            length, at = read_varint(data, at, end)
            if at < 0 or length < 6 or length > end - at:
                at = np.int64(-1)
                break
            delta, after = read_varint(data, at + 1, at + length)
            if after < 0:
                at = np.int64(-1)
                break
            best = min(best, base + delta)
            at += length
        if at != end:
            sound[batch] = False
        else:
            out[batch] = best


@njit(cache=True, nogil=True)
def join_records(data, start, end, count, offset_shift, time_shift, out, at):
    """Write the records of batches at `start` to `end` of `data` into `out` from `at` on.

    Each record's offset and timestamp delta grows by the shift of its batch. Returns a status, the position after the
    last record written, and the row of the batch that the status is about. `out` must have 17 bytes more than the
    records have, for each record: that is how much the three numbers can grow by.
    """
    for row in range(len(start)):
        position = start[row]
        stop = end[row]
        for number in range(count[row]):
            length, body = read_varint(data, position, stop)
            if body < 0:
                return BAD_VARINT, at, row
            # Attributes, two deltas, and the lengths of key, value and headers need a byte each.
            if length < 6 or length > stop - body:
                return BAD_LENGTH, at, row
            last = body + length
            attributes = data[body]
            time_delta, position = read_varint(data, body + 1, last)
            if position < 0:
                return BAD_VARINT, at, row
            offset_delta, rest = read_varint(data, position, last)
            if rest < 0:
                return BAD_VARINT, at, row
            # Batches without holes alone are joined: their offsets count up one by one.
            if offset_delta != number:
                return BAD_OFFSET_DELTA, at, row
            time_delta += time_shift[row]
            offset_delta += offset_shift[row]
            size = np.int64(1) + varint_bytes(time_delta) + varint_bytes(offset_delta) + (last - rest)
            at = write_varint(out, at, size)
            out[at] = attributes
            at = write_varint(out, at + 1, time_delta)
            at = write_varint(out, at, offset_delta)
            copy_bytes(out, at, data, rest, last - rest)
            at += last - rest
            position = last
        if position != stop:
            return BAD_COUNT, at, row
    return OK, at, -1

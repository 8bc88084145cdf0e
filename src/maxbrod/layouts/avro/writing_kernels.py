"""The compiled loops that write Avro records of the schema that we write."""

from __future__ import annotations

import numpy as np
from numba import njit

from maxbrod.batch.kernels import copy_bytes, varint_bytes, write_varint


@njit(cache=True, nogil=True)
def mark_text(ends, data, first, last, text):
    """Mark which values of [first, last) are UTF-8, as an Avro string must be."""
    for part in range(first, last):
        at = np.int64(ends[part])
        end = np.int64(ends[part + 1])
        good = True
        while good and at < end:
            lead = data[at]
            if lead < 0x80:
                more = 0
            elif 0xC2 <= lead < 0xE0:
                more = 1
            elif 0xE0 <= lead < 0xF0:
                more = 2
            elif 0xF0 <= lead < 0xF5:
                more = 3
            else:
                good = False
                break
            if at + more >= end:
                good = False
                break
            for i in range(1, more + 1):
                good = good and data[at + i] & 0xC0 == 0x80
            if more > 1:
                second = data[at + 1]
                low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
                high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
                good = good and low <= second <= high
            at += more + 1
        text[part] = good


@njit(cache=True, nogil=True, inline="always")
def _length(ends, row):
    return np.int64(ends[row + 1]) - np.int64(ends[row])


@njit(cache=True, nogil=True, inline="always")
def _listed(header_ends, header_value_valid, text, row):
    """Whether the map of headers would lose something: their order, one of them, a null, a key that is not UTF-8."""
    first = header_ends[row]
    last = header_ends[row + 1]
    return last - first > 1 or (last - first == 1 and not (header_value_valid[first] and text[first]))


@njit(cache=True, nogil=True)
def measure(
    offset,
    timestamp,
    timestamp_type,
    key_ends,
    key_valid,
    value_ends,
    value_valid,
    header_ends,
    header_key_ends,
    header_value_ends,
    header_value_valid,
    text,
    head_bytes,
    seed,
    size,
):
    """The size of each record. `seed`: in the documented schema, which ends with the map of headers."""
    for row in range(len(size)):
        # The branches of key and headers take a byte each, and so do those of value and list if they have branches. So
        # does the length of a null value without branches.
        total = head_bytes + varint_bytes(offset[row]) + varint_bytes(timestamp[row]) + 2
        if not seed:
            total += varint_bytes(np.int64(timestamp_type[row])) + 2
        elif not value_valid[row]:
            total += 1
        if key_valid[row]:
            total += varint_bytes(_length(key_ends, row)) + _length(key_ends, row)
        if value_valid[row]:
            total += varint_bytes(_length(value_ends, row)) + _length(value_ends, row)
        mapped = np.int64(0)
        for header in range(header_ends[row], header_ends[row + 1]):
            if text[header]:
                mapped += 1
                key = _length(header_key_ends, header)
                value = _length(header_value_ends, header) if header_value_valid[header] else np.int64(0)
                total += varint_bytes(key) + key + varint_bytes(value) + value
        total += varint_bytes(mapped) + 1 if mapped else 1
        if not seed and _listed(header_ends, header_value_valid, text, row):
            total += varint_bytes(np.int64(header_ends[row + 1]) - np.int64(header_ends[row])) + 1
            for header in range(header_ends[row], header_ends[row + 1]):
                key = _length(header_key_ends, header)
                total += varint_bytes(key) + key + 1
                if header_value_valid[header]:
                    value = _length(header_value_ends, header)
                    total += varint_bytes(value) + value
        size[row] = total


@njit(cache=True, nogil=True, inline="always")
def _put_bytes(out, at, ends, data, row):
    size = _length(ends, row)
    at = write_varint(out, at, size)
    copy_bytes(out, at, data, np.int64(ends[row]), size)
    return at + size


@njit(cache=True, nogil=True)
def write(
    offset,
    timestamp,
    timestamp_type,
    key_ends,
    key_data,
    key_valid,
    value_ends,
    value_data,
    value_valid,
    header_ends,
    header_key_ends,
    header_key_data,
    header_key_valid,  # noqa: ARG001 - one of `RecordBuffers.all`
    header_value_ends,
    header_value_data,
    header_value_valid,
    text,
    head,
    seed,
    first,
    last,
    out,
):
    """Write the records [first, last). Each begins with `head`; `out` has the size of `measure`."""
    at = np.int64(0)
    for row in range(first, last):
        copy_bytes(out, at, head, 0, len(head))
        at = write_varint(out, at + len(head), offset[row])
        at = write_varint(out, at, timestamp[row])
        out[at] = 0 if key_valid[row] else 2
        at += 1
        if key_valid[row]:
            at = _put_bytes(out, at, key_ends, key_data, row)
        # In the documented schema the value is not a union: a null becomes an empty value.
        if not (seed and value_valid[row]):
            out[at] = 0 if value_valid[row] or seed else 2
            at += 1
        if value_valid[row]:
            at = _put_bytes(out, at, value_ends, value_data, row)
        out[at] = 0
        at += 1
        mapped = np.int64(0)
        for header in range(header_ends[row], header_ends[row + 1]):
            mapped += text[header]
        if mapped:
            at = write_varint(out, at, mapped)
            for header in range(header_ends[row], header_ends[row + 1]):
                if text[header]:
                    at = _put_bytes(out, at, header_key_ends, header_key_data, header)
                    if header_value_valid[header]:
                        at = _put_bytes(out, at, header_value_ends, header_value_data, header)
                    else:
                        out[at] = 0
                        at += 1
        out[at] = 0
        at += 1
        if seed:
            continue
        at = write_varint(out, at, np.int64(timestamp_type[row]))
        if not _listed(header_ends, header_value_valid, text, row):
            out[at] = 0
            at += 1
            continue
        out[at] = 2
        at = write_varint(out, at + 1, np.int64(header_ends[row + 1]) - np.int64(header_ends[row]))
        for header in range(header_ends[row], header_ends[row + 1]):
            at = _put_bytes(out, at, header_key_ends, header_key_data, header)
            if header_value_valid[header]:
                out[at] = 2
                at = _put_bytes(out, at + 1, header_value_ends, header_value_data, header)
            else:
                out[at] = 0
                at += 1
        out[at] = 0
        at += 1
    return at

"""The compiled loops over Avro records: a program walks each record, so that any writer's schema can be read.

The rules of `maxbrod.batch.kernels` apply: every position is compared with its end before it is read, every loop moves
forward, nothing is allocated.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from maxbrod.batch.kernels import copy_bytes, read_varint, varint_bytes, write_varint
from maxbrod.layouts.avro import program as avro

OK: Final = 0
CUT: Final = 1
BAD_LENGTH: Final = 2
BAD_UNION: Final = 3
BAD_PLACE: Final = 4
BAD_OFFSET: Final = 5
BAD_TYPE: Final = 6
BAD_COUNT: Final = 7

MEANING: Final = {
    CUT: "a record exceeds the end of its block",
    BAD_LENGTH: "a record has an invalid length or count",
    BAD_UNION: "a record has an unknown branch of a union",
    BAD_PLACE: "a record belongs to another topic or partition than its file",
    BAD_OFFSET: "a record's offset does not rise",
    BAD_TYPE: "a record has an unknown timestamp type",
    BAD_COUNT: "a block holds more bytes than its records",
}


@njit(cache=True, nogil=True)
def decode(program, data, block_end, block_count, topic, partition, after, stack, header_kind, room):
    """Find and check all parts of all records of contiguous blocks.

    `after`: offsets must rise from above it. Returns (status, block, row).
    """
    code, slots, _ = program
    offset, timestamp, timestamp_type = room.offset, room.timestamp_ms, room.timestamp_type
    (key_at, key_length), (value_at, value_length) = room.key, room.value
    header_at, header_ends = room.header_at, room.header_ends
    row = 0
    at = np.int64(0)
    header_total = np.int64(0)
    for block in range(len(block_end)):
        end = block_end[block]
        for _ in range(block_count[block]):
            offset[row] = -1
            timestamp[row] = -1
            timestamp_type[row] = 0
            key_length[row] = -1
            key_at[row] = 0
            value_length[row] = -1
            value_at[row] = 0
            map_at = np.int64(-1)
            map_count = np.int64(0)
            list_at = np.int64(-1)
            list_count = np.int64(0)
            depth = 0
            pc = np.int64(0)
            while code[pc] != avro.OP_END:
                op = code[pc]
                if op == avro.OP_LONG:
                    value, at = read_varint(data, at, end)
                    if at < 0:
                        return CUT, block, row
                    slot = slots[code[pc + 1]]
                    if slot == avro.OFFSET:
                        offset[row] = value
                    elif slot == avro.TIMESTAMP:
                        timestamp[row] = value
                    elif slot == avro.PARTITION:
                        if value != partition:
                            return BAD_PLACE, block, row
                    elif slot == avro.TIMESTAMP_TYPE:
                        if value < -1 or value > 1:
                            return BAD_TYPE, block, row
                        timestamp_type[row] = value
                    pc += 2
                elif op == avro.OP_BYTES:
                    size, at = read_varint(data, at, end)
                    if at < 0:
                        return CUT, block, row
                    if size < 0 or size > end - at:
                        return BAD_LENGTH, block, row
                    slot = slots[code[pc + 1]]
                    if slot == avro.KEY:
                        key_at[row] = at
                        key_length[row] = size
                    elif slot == avro.VALUE:
                        value_at[row] = at
                        value_length[row] = size
                    elif slot == avro.TOPIC:
                        if size != len(topic):
                            return BAD_PLACE, block, row
                        for i in range(size):
                            if data[at + i] != topic[i]:
                                return BAD_PLACE, block, row
                    at += size
                    pc += 2
                elif op == avro.OP_UNION:
                    branch, at = read_varint(data, at, end)
                    if at < 0:
                        return CUT, block, row
                    if branch < 0 or branch >= code[pc + 1]:
                        return BAD_UNION, block, row
                    pc = code[pc + 2 + branch]
                elif op == avro.OP_JUMP:
                    pc = code[pc + 1]
                elif op == avro.OP_BLOCKS:
                    slot = slots[code[pc + 1]]
                    if slot == avro.HEADER_MAP and map_at < 0:
                        map_at = at
                    elif slot == avro.HEADER_LIST and list_at < 0:
                        list_at = at
                    count, at = read_varint(data, at, end)
                    if at < 0:
                        return CUT, block, row
                    # An item takes at least a byte, so the loop is bounded by the bytes that exist.
                    if count > end - at or count < at - end:
                        return BAD_LENGTH, block, row
                    if count < 0:
                        count = -count
                        size, at = read_varint(data, at, end)
                        if at < 0:
                            return CUT, block, row
                    if count == 0:
                        pc = code[pc + 2]
                    else:
                        if slot == avro.HEADER_MAP:
                            map_count += count
                        elif slot == avro.HEADER_LIST:
                            list_count += count
                        stack[depth] = count
                        depth += 1
                        pc += 3
                elif op == avro.OP_NEXT:
                    stack[depth - 1] -= 1
                    if stack[depth - 1] > 0:
                        pc = code[pc + 1] + 3
                    else:
                        depth -= 1
                        pc = code[pc + 1]
                elif op == avro.OP_STRUCT:
                    pc += 2
                elif op == avro.OP_NULLS:
                    # A part without a value is null from the beginning.
                    pc += 2 + code[pc + 1]
                else:
                    size = np.int64(8)
                    if op == avro.OP_FIXED:
                        size = code[pc + 2]
                    elif op == avro.OP_BOOLEAN:
                        size = np.int64(1)
                    elif op == avro.OP_FLOAT:
                        size = np.int64(4)
                    if size > end - at:
                        return CUT, block, row
                    at += size
                    pc += 3 if op == avro.OP_FIXED else 2
            if offset[row] <= after:
                return BAD_OFFSET, block, row
            after = offset[row]
            if list_at >= 0:
                header_at[row] = list_at
                header_kind[row] = avro.HEADER_LIST
                header_total += list_count
            else:
                header_at[row] = map_at
                header_kind[row] = avro.HEADER_MAP
                header_total += map_count
            header_ends[row] = header_total
            row += 1
        if at != end:
            return BAD_COUNT, block, row
    return OK, 0, row


_JAVA_ARRAY: Final = np.frombuffer(bytes.fromhex("aced0005757200025b42acf317f8060854e00200007870"), np.uint8)
_JAVA_ARRAY_HEAD: Final = 27
_JAVA_STRING_HEAD: Final = 7


@njit(cache=True, nogil=True)
def scan_headers(data, header_at, header_kind, header_ends, header_null, key, value):
    """Find the parts of the headers. Reads only what `decode` has checked; a list stores pairs as a map does."""
    (key_at, key_length), (value_at, value_length) = key, value
    end = np.int64(len(data))
    header = np.int64(0)
    for row in range(len(header_at)):
        at = header_at[row]
        null = header_null[header_kind[row]]
        left = np.int64(0)
        while header < header_ends[row]:
            if left == 0:
                left, at = read_varint(data, at, end)
                if left < 0:
                    left = -left
                    _, at = read_varint(data, at, end)
            size, at = read_varint(data, at, end)
            key_at[header] = at
            key_length[header] = size
            at += size
            branch = np.int64(-2)
            if null >= 0:
                branch, at = read_varint(data, at, end)
            if branch == null:
                value_at[header] = at
                value_length[header] = -1
            else:
                size, at = read_varint(data, at, end)
                value_at[header] = at
                value_length[header] = size
                at += size
            left -= 1
            header += 1


@njit(cache=True, nogil=True)
def unwrap_java(data, at, length):
    """Remove Java's serialisation from values that are a `byte[]` or a `String`; how many are something else."""
    others = 0
    for part in range(len(at)):
        begin = at[part]
        size = length[part]
        if size < _JAVA_STRING_HEAD:
            continue
        java = True
        for i in range(4):
            java = java and data[begin + i] == _JAVA_ARRAY[i]
        if not java:
            continue
        kind = data[begin + 4]
        plain = False
        if kind == 0x75 and size >= _JAVA_ARRAY_HEAD:
            plain = True
            for i in range(len(_JAVA_ARRAY)):
                plain = plain and data[begin + i] == _JAVA_ARRAY[i]
            inner = np.int64(0)
            for i in range(len(_JAVA_ARRAY), _JAVA_ARRAY_HEAD):
                inner = inner << 8 | np.int64(data[begin + i])
            plain = plain and inner == size - _JAVA_ARRAY_HEAD
            head = _JAVA_ARRAY_HEAD
        elif kind == 0x74:
            plain = (np.int64(data[begin + 5]) << 8 | np.int64(data[begin + 6])) == size - _JAVA_STRING_HEAD
            for i in range(_JAVA_STRING_HEAD, size):
                # Java encodes NUL and characters beyond 16 bits differently from UTF-8.
                plain = plain and data[begin + i] != 0xC0 and data[begin + i] != 0xED
            head = _JAVA_STRING_HEAD
        else:
            head = 0
        if plain:
            at[part] = begin + head
            length[part] = size - head
        else:
            others += 1
    return others


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
    """True if the map of headers would lose something: their order, one of them, a null, a key that is not UTF-8."""
    first = header_ends[row]
    last = header_ends[row + 1]
    return last - first > 1 or (last - first == 1 and not (header_value_valid[first] and text[first]))


@njit(cache=True, nogil=True)
def measure(records, text, head_bytes, seed, size):
    """The size of each record. `seed`: in the documented schema, which ends with the map of headers."""
    offset, timestamp, timestamp_type = records.offset, records.timestamp, records.kind
    key_ends, _, key_valid = records.key
    value_ends, _, value_valid = records.value
    header_ends, header_key_ends = records.header_ends, records.header_key.ends
    header_value_ends, _, header_value_valid = records.header_value
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
def write(records, text, head, seed, first, last, out):
    """Write the records [first, last). Each begins with `head`; `out` has the size of `measure`."""
    offset, timestamp, timestamp_type = records.offset, records.timestamp, records.kind
    key_ends, key_data, key_valid = records.key
    value_ends, value_data, value_valid = records.value
    header_ends, (header_key_ends, header_key_data, _) = records.header_ends, records.header_key
    header_value_ends, header_value_data, header_value_valid = records.header_value
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

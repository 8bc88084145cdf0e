"""The compiled loops over Protobuf: messages, and the message indexes of Confluent's format before them.

A message has its fields in any order, any number of times, known or not.

At the beginning of a message each of its fields gets an entry with its default, which the fields found then overwrite.
Every position is compared with its end before it is read, every loop moves forward, nothing is allocated.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from maxbrod.batch.kernels import read_varint

# At a message's address: its node or -1, how many fields, how many members; then fields, then members.
FIELD_SIZE: Final = 5  # number, kind, node, list node or -1, address of its message
MEMBER_SIZE: Final = 3  # node, value and length to begin with
HEAD_SIZE: Final = 3

VARINT: Final = 0
INT32: Final = 1
UINT32: Final = 2
BOOL: Final = 3
ZIGZAG: Final = 4
FIXED64: Final = 5
FIXED32: Final = 6
SFIXED32: Final = 7
BYTES: Final = 8
MESSAGE: Final = 9

DEPTH_MAX: Final = 64
LEVELS_MAX: Final = 7
INDEX_MAX: Final = 254
"""The message indexes of Confluent's format: how many levels, and the highest index of one."""
OK: Final = 0
CUT: Final = 1
BAD_LENGTH: Final = 2
BAD_TAG: Final = 3
TOO_DEEP: Final = 4

MEANING: Final = {
    CUT: "it ends too early",
    BAD_LENGTH: "it has an impossible length",
    BAD_TAG: "it has an invalid tag, or a group",
    TOO_DEEP: "it nests too deeply",
}


@njit(cache=True, nogil=True, inline="always")
def _varint(data, at, end):
    """An unsigned number of 64 bits, and the position after it, -1 if it runs past the end."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        raw |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            return raw, at
        shift += np.uint64(7)
    return np.uint64(0), np.int64(-1)


@njit(cache=True, nogil=True)
def _scalar(kind, data, at, end):
    """A number as 64 bits, and the position after it."""
    if kind <= ZIGZAG:
        raw, at = _varint(data, at, end)
        number = np.int64(raw)
        if kind == INT32:
            number = np.int64(np.int32(raw & np.uint64(0xFFFFFFFF)))
        elif kind == UINT32:
            number = np.int64(raw & np.uint64(0xFFFFFFFF))
        elif kind == BOOL:
            number = np.int64(1) if raw != 0 else np.int64(0)
        elif kind == ZIGZAG:
            number = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
        return number, at
    size = 8 if kind == FIXED64 else 4
    if size > end - at:
        return np.int64(0), np.int64(-1)
    raw = np.uint64(0)
    for place in range(size):
        raw |= np.uint64(data[at + place]) << np.uint64(8 * place)
    number = np.int64(raw)
    if kind == SFIXED32:
        number = np.int64(np.int32(raw & np.uint64(0xFFFFFFFF)))
    return number, at + size


@njit(cache=True, nogil=True)
def _begin(code, message, fill, first, count, value, length):
    node = code[message]
    if node >= 0:
        if fill:
            value[first[node] + count[node]] = 0
            length[first[node] + count[node]] = 0
        count[node] += 1
    place = message + HEAD_SIZE + code[message + 1] * FIELD_SIZE
    for _ in range(code[message + 2]):
        node = code[place]
        if fill:
            value[first[node] + count[node]] = code[place + 1]
            length[first[node] + count[node]] = code[place + 2]
        count[node] += 1
        place += MEMBER_SIZE


@njit(cache=True, nogil=True)
def _skip(data, at, end, wire):
    if wire == 0:
        _, at = _varint(data, at, end)
        return at
    size = np.uint64(0)
    if wire == 1:
        size = np.uint64(8)
    elif wire == 5:
        size = np.uint64(4)
    else:
        size, at = _varint(data, at, end)
        if at < 0:
            return at
    return np.int64(-1) if size > np.uint64(end - at) else at + np.int64(size)


@njit(cache=True, nogil=True)
def _walk(code, data, at, end, fill, first, count, value, length, stack):
    message = code[0]
    _begin(code, message, fill, first, count, value, length)
    depth = 0
    while True:
        while at == end:
            if depth == 0:
                return OK
            depth -= 1
            end = stack[2 * depth]
            message = stack[2 * depth + 1]
        tag, at = _varint(data, at, end)
        if at < 0:
            return CUT
        wire = np.int64(tag & np.uint64(7))
        number = np.int64(tag >> np.uint64(3))
        if number == 0 or wire in (3, 4) or wire > 5:
            return BAD_TAG
        field = np.int64(-1)
        place = message + HEAD_SIZE
        for _ in range(code[message + 1]):
            if code[place] == number:
                field = place
                break
            place += FIELD_SIZE
        kind = code[field + 1] if field >= 0 else np.int64(-1)
        natural = np.int64(2)
        if kind >= 0 and kind <= ZIGZAG:
            natural = np.int64(0)
        elif kind == FIXED64:
            natural = np.int64(1)
        elif kind in (FIXED32, SFIXED32):
            natural = np.int64(5)
        many = field >= 0 and code[field + 3] >= 0
        if field < 0 or (wire != natural and not (many and wire == 2 and natural != 2)):
            at = _skip(data, at, end, wire)
            if at < 0:
                return CUT
            continue
        node = code[field + 2]
        items = code[field + 3]
        stop = at
        size = np.int64(0)
        if wire == 2:
            raw, at = _varint(data, at, end)
            if at < 0:
                return CUT
            if raw > np.uint64(end - at):
                return BAD_LENGTH
            size = np.int64(raw)
            stop = at + size
        if kind == MESSAGE:
            if depth == DEPTH_MAX:
                return TOO_DEEP
            if many:
                if fill:
                    value[first[items] + count[items] - 1] += 1
                _begin(code, code[field + 4], fill, first, count, value, length)
            elif fill:
                length[first[node] + count[node] - 1] = 0
            stack[2 * depth] = end
            stack[2 * depth + 1] = message
            depth += 1
            message = code[field + 4]
            end = stop
        elif kind == BYTES:
            if many:
                if fill:
                    value[first[items] + count[items] - 1] += 1
                count[node] += 1
            if fill:
                value[first[node] + count[node] - 1] = at
                length[first[node] + count[node] - 1] = size
            at = stop
        else:
            # One number, or as many as there are in a packed field.
            limit = stop if wire == 2 else end
            packed = wire == 2
            while (not packed and stop == at) or (packed and at < stop):
                found, after = _scalar(kind, data, at, limit)
                if after < 0:
                    return CUT
                if many:
                    if fill:
                        value[first[items] + count[items] - 1] += 1
                    count[node] += 1
                if fill:
                    value[first[node] + count[node] - 1] = found
                    length[first[node] + count[node] - 1] = 0
                at = after


@njit(cache=True, nogil=True)
def walk(code, data, starts, ends, status, nulls, fill, first, count, value, length):
    """Walk all messages, as the loop over Avro values does: the first pass fills `status`, the second obeys it."""
    stack = np.zeros(2 * DEPTH_MAX, np.int64)
    before = np.zeros(len(count), np.int64)
    for row in range(len(starts)):
        if starts[row] >= 0 and status[row] == OK:
            before[:] = count
            status[row] = _walk(code, data, starts[row], ends[row], fill, first, count, value, length, stack)
            if status[row] == OK:
                continue
            count[:] = before
        for place in range(len(nulls)):
            node = nulls[place]
            if fill:
                value[first[node] + count[node]] = 0
                length[first[node] + count[node]] = -1
            count[node] += 1


@njit(cache=True, nogil=True)
def read_indexes(data, starts, ends, places):
    """Move each start behind its list of indexes, and write the list as one number: a byte for each index, plus one.

    An empty list means the first message, and so does a list of one zero: both are 0. If there is no valid list, the
    start becomes -1.
    """
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        count, at = read_varint(data, starts[row], ends[row])
        if at < 0 or count < 0 or count > LEVELS_MAX:
            starts[row] = -1
            continue
        place = np.int64(0)
        for level in range(count):
            index, at = read_varint(data, at, ends[row])
            if at < 0 or index < 0 or index > INDEX_MAX:
                at = np.int64(-1)
                break
            place |= (index + 1) << (8 * level)
        if place == 1:
            place = np.int64(0)
        places[row] = place
        starts[row] = at

"""The compiled loop over Avro values: a program walks each value and writes what it finds to the tape.

Every position is compared with its end before it is read, every loop moves forward, nothing is allocated.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from maxbrod.batch.kernels import read_varint
from maxbrod.layouts.avro import program as avro

OK: Final = 0
CUT: Final = 1
BAD_LENGTH: Final = 2
BAD_UNION: Final = 3
LONGER: Final = 4

MEANING: Final = {
    CUT: "it ends too early",
    BAD_LENGTH: "it has an impossible length or count",
    BAD_UNION: "it has a branch that the union does not have",
    LONGER: "bytes are left after its end",
}


@njit(cache=True, nogil=True)
def _walk(code, data, at, end, fill, first, count, value, length, stack, opened):
    """Walk one value. Returns the status."""
    depth = 0
    pc = np.int64(0)
    while code[pc] != avro.OP_END:
        op = code[pc]
        node = code[pc + 1]
        if op in (avro.OP_LONG, avro.OP_BYTES):
            number, at = read_varint(data, at, end)
            if at < 0:
                return CUT
            size = np.int64(0)
            if op == avro.OP_BYTES:
                size = number
                if size < 0 or size > end - at:
                    return BAD_LENGTH
                number = at
                at += size
            if fill:
                value[first[node] + count[node]] = number
                length[first[node] + count[node]] = size
            count[node] += 1
            pc += 2
        elif op in (avro.OP_BOOLEAN, avro.OP_FLOAT, avro.OP_DOUBLE):
            size = np.int64(1)
            if op == avro.OP_FLOAT:
                size = np.int64(4)
            elif op == avro.OP_DOUBLE:
                size = np.int64(8)
            if size > end - at:
                return CUT
            if fill:
                bits = np.uint64(0)
                for place in range(size):
                    bits |= np.uint64(data[at + place]) << np.uint64(8 * place)
                value[first[node] + count[node]] = np.int64(bits)
                length[first[node] + count[node]] = 0
            at += size
            count[node] += 1
            pc += 2
        elif op == avro.OP_FIXED:
            size = code[pc + 2]
            if size > end - at:
                return CUT
            if fill:
                value[first[node] + count[node]] = at
                length[first[node] + count[node]] = size
            at += size
            count[node] += 1
            pc += 3
        elif op == avro.OP_STRUCT:
            if fill:
                value[first[node] + count[node]] = 0
                length[first[node] + count[node]] = 0
            count[node] += 1
            pc += 2
        elif op == avro.OP_NULLS:
            nodes = code[pc + 1]
            for place in range(nodes):
                node = code[pc + 2 + place]
                if fill:
                    value[first[node] + count[node]] = 0
                    length[first[node] + count[node]] = -1
                count[node] += 1
            pc += 2 + nodes
        elif op == avro.OP_UNION:
            branch, at = read_varint(data, at, end)
            if at < 0:
                return CUT
            if branch < 0 or branch >= code[pc + 1]:
                return BAD_UNION
            pc = code[pc + 2 + branch]
        elif op == avro.OP_JUMP:
            pc = code[pc + 1]
        elif op == avro.OP_BLOCKS:
            if opened[pc] == 0:
                # The first block: the list itself occurs here.
                opened[pc] = 1
                if fill:
                    value[first[node] + count[node]] = 0
                    length[first[node] + count[node]] = 0
                count[node] += 1
            items, at = read_varint(data, at, end)
            if at < 0:
                return CUT
            # An item takes at least one byte, so this bounds the loop by the bytes that are there.
            if items > end - at or items < at - end:
                return BAD_LENGTH
            if items < 0:
                items = -items
                size, at = read_varint(data, at, end)
                if at < 0:
                    return CUT
            if items == 0:
                opened[pc] = 0
                pc = code[pc + 2]
            else:
                if fill:
                    value[first[node] + count[node] - 1] += items
                stack[depth] = items
                depth += 1
                pc += 3
        else:
            stack[depth - 1] -= 1
            if stack[depth - 1] > 0:
                pc = code[pc + 1] + 3
            else:
                depth -= 1
                pc = code[pc + 1]
    return OK if at == end else LONGER


@njit(cache=True, nogil=True)
def walk(code, data, starts, ends, status, nulls, fill, first, count, value, length):
    """Walk every value, from its start to its end; a start of -1 means null.

    The first pass fills `status`, the second obeys it: a value that cannot be read is null, and nothing of it stays.
    """
    stack = np.zeros(avro.DEPTH_MAX, np.int64)
    opened = np.zeros(len(code), np.uint8)
    before = np.zeros(len(count), np.int64)
    for row in range(len(starts)):
        if starts[row] >= 0 and status[row] == OK:
            before[:] = count
            status[row] = _walk(code, data, starts[row], ends[row], fill, first, count, value, length, stack, opened)
            if status[row] == OK:
                continue
            count[:] = before
            opened[:] = 0
        for place in range(len(nulls)):
            node = nulls[place]
            if fill:
                value[first[node] + count[node]] = 0
                length[first[node] + count[node]] = -1
            count[node] += 1

"""The compiled loops over the headers of Avro records, and over what Java has wrapped around their values."""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from maxbrod.batch.kernels import read_varint

_JAVA_ARRAY: Final = np.frombuffer(bytes.fromhex("aced0005757200025b42acf317f8060854e00200007870"), np.uint8)
_JAVA_ARRAY_HEAD: Final = 27
_JAVA_STRING_HEAD: Final = 7


@njit(cache=True, nogil=True)
def scan_headers(data, header_at, header_kind, header_ends, header_null, key_at, key_length, value_at, value_length):
    """Find the parts of the headers. Reads only what `decode` has checked: a list's pairs are stored as a map's."""
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
    """Take Java's serialisation off values that are a `byte[]` or a `String`. Returns how many are something else."""
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
                # Java writes NUL, and letters beyond 16 bits, as no other writer of UTF-8 does.
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

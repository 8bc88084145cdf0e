"""Page headers of a column chunk, looked at before Arrow unpacks the pages: a few bytes may claim to be gigabytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError
from maxbrod.layouts.parquet.thrift import decode_struct

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE_BYTES_MAX: Final = 256 << 20
"""A record lies within a page, so this is more than twice what brokers are ever set up to take."""
_UNPACKED_BYTES: Final = 2
_PACKED_BYTES: Final = 3


def check_pages(chunk: memoryview, *, column: str) -> None:
    """CorruptDataError: a page claims to unpack to more than any page has, or its header is none."""
    for unpacked in _unpacked_sizes(chunk):
        if not 0 <= unpacked <= PAGE_BYTES_MAX:
            raise CorruptDataError(f"a page of {column} claims to unpack to {unpacked} bytes")


def _unpacked_sizes(chunk: memoryview) -> Iterator[int]:
    at = 0
    while at < len(chunk):
        header, at = decode_struct(chunk, at)
        packed, unpacked = header.get(_PACKED_BYTES), header.get(_UNPACKED_BYTES)
        if not isinstance(packed, int) or not isinstance(unpacked, int) or not 0 <= packed <= len(chunk) - at:
            raise CorruptDataError(f"a page of {packed} bytes begins where {len(chunk) - at} are left", position=at)
        yield unpacked
        at += packed

"""Walks a buffer of record batches and reads their headers, without copying or touching records.

Owns the byte layout of a batch header and the check of its CRC. A batch that ends beyond the buffer is normal,
because a fetch response is cut at any byte, and differs from a damaged one. Python runs once per batch; the fields
are columns. `legacy`, which is compiled, walks messages of magic 0 and 1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import numpy as np

from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError, naming
from maxbrod.model import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER_BYTES: Final = 61
"""A batch of magic 2 up to its first record."""
LOG_OVERHEAD_BYTES: Final = 12
"""The bytes before those that `batch_length` counts."""
CRC_START: Final = 21
"""The CRC covers a batch from here to its end."""

ATTRIBUTE_CODEC: Final = 0x07
ATTRIBUTE_LOG_APPEND: Final = 0x08
ATTRIBUTE_TRANSACTIONAL: Final = 0x10
ATTRIBUTE_CONTROL: Final = 0x20
ATTRIBUTE_DELETE_HORIZON: Final = 0x40
_ATTRIBUTES_KNOWN: Final = 0x7F

HEADER_DTYPE: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)

NEWEST_MAGIC: Final = 2
_START: Final = struct.Struct(">qi4xb")  # base offset, length, (leader epoch or old CRC), magic
_LENGTH: Final = struct.Struct(">8xi4xb")  # length, magic
_SIZE_MIN: Final = {0: 26, 1: 34, 2: HEADER_BYTES}  # magic 0 and 1: a message with null key and null value
_DAMAGED: Final = "the bytes are damaged from this position on; read them again from the source"
_NEWER: Final = "the bytes are damaged, or a Kafka version newer than this release of maxbrod supports wrote them"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeaders:
    """The headers of the whole batches of one buffer. `headers["base_offset"]` is a column with one row a batch.

    A message of magic 0 or 1 is a row as well, under the names of magic 2: `base_offset` is its own offset (for
    a compressed message, the last offset inside), `count` is 1, or -1 if the message must be decompressed to know.
    """

    position: NDArray[np.int64]
    size: NDArray[np.int64]
    fields: Mapping[str, NDArray[Any]]
    end: int
    """The first byte after the last whole batch."""
    tail: int = 0
    """The number of bytes of a cut batch after `end`."""

    def __len__(self) -> int:
        return len(self.position)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.fields[name]

    def take(self, rows: slice | NDArray[Any]) -> BatchHeaders:
        """The headers of some batches of the same buffer."""
        # Contiguous for any `rows`, or numba would compile each kernel again for strided columns.
        position, size = (np.ascontiguousarray(column[rows]) for column in (self.position, self.size))
        fields = {name: np.ascontiguousarray(column[rows]) for name, column in self.fields.items()}
        return BatchHeaders(position=position, size=size, fields=fields, end=self.end, tail=self.tail)

    def codec_at(self, row: int) -> Codec:
        """The codec of one batch. UnsupportedFormatError for an undefined number."""
        number = int(self["attributes"][row]) & ATTRIBUTE_CODEC
        try:
            return Codec(number)
        except ValueError:
            raise UnsupportedFormatError(
                f"compression codec {number} is unknown",
                offset=int(self["base_offset"][row]),
                position=int(self.position[row]),
                hint="a Kafka version newer than this release of maxbrod supports wrote the batch",
            ) from None

    def refuse_unknown_codecs(self) -> None:
        for row in np.flatnonzero(self.codec > max(Codec)).tolist():
            self.codec_at(row)

    def generations(self) -> list[tuple[bool, slice]]:
        """Runs of rows of one format generation: whether they are of magic 0 or 1, and the rows."""
        old = self["magic"] != NEWEST_MAGIC
        edges = [0, *(np.flatnonzero(old[1:] != old[:-1]) + 1).tolist(), len(old)]
        return [(bool(old[start : start + 1].any()), slice(start, end)) for start, end in pairwise(edges)]

    @property
    def last_offset(self) -> NDArray[np.int64]:
        last: NDArray[np.int64] = self["base_offset"] + self["last_offset_delta"]
        return last

    @property
    def codec(self) -> NDArray[np.int16]:
        return self["attributes"] & np.int16(ATTRIBUTE_CODEC)

    @property
    def log_append(self) -> NDArray[np.bool_]:
        return self._flag(ATTRIBUTE_LOG_APPEND)

    @property
    def transactional(self) -> NDArray[np.bool_]:
        return self._flag(ATTRIBUTE_TRANSACTIONAL)

    @property
    def control(self) -> NDArray[np.bool_]:
        return self._flag(ATTRIBUTE_CONTROL)

    @property
    def delete_horizon(self) -> NDArray[np.bool_]:
        return self._flag(ATTRIBUTE_DELETE_HORIZON)

    @property
    def misstates_highest(self) -> NDArray[np.bool_]:
        """A mask of headers whose highest timestamp is below that of the first record. Some clients sent that."""
        stated = (self["magic"] == NEWEST_MAGIC) & ~self.log_append & ~self.delete_horizon
        found: NDArray[np.bool_] = stated & (self["base_timestamp"] > self["max_timestamp"])
        return found

    def _flag(self, bit: int) -> NDArray[np.bool_]:
        # Bits 4 and up mean nothing in a message of magic 0 or 1.
        flag: NDArray[np.bool_] = ((self["attributes"] & np.int16(bit)) != 0) & (self["magic"] == NEWEST_MAGIC)
        return flag


def header_rows(fields: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Columns as headers in wire byte order, one row a batch; the inverse of reading them."""
    rows = np.empty(len(fields["magic"]), HEADER_DTYPE)
    for name in HEADER_DTYPE.names or ():
        rows[name] = fields[name]
    return rows


def as_bytes_array(buffer: Any) -> NDArray[np.uint8]:  # noqa: ANN401 - anything with a buffer
    """A byte array over the memory of any buffer."""
    if isinstance(buffer, np.ndarray):
        return np.ascontiguousarray(buffer).view(np.uint8)
    return np.frombuffer(buffer, np.uint8)


def walk(
    buffer: Any,  # noqa: ANN401 - anything with a buffer
    *,
    check_crc: bool = True,
    whole: bool = False,
    batch_bytes_max: int = (1 << 31) - 1,
    object_name: str | None = None,
) -> BatchHeaders:
    """Read every batch header of `buffer`.

    A cut batch at the end becomes `tail`, unless `whole` forbids one. CorruptDataError, TruncatedDataError and
    UnsupportedFormatError name the offset and the byte position; all batches before that position are valid.
    """
    data = as_bytes_array(buffer)
    with naming(object_name):
        headers = _walk(data, batch_bytes_max, check_crc=check_crc)
        if whole and headers.tail:
            raise TruncatedDataError(
                f"the last batch is cut: only {headers.tail} bytes of it are present",
                position=headers.end,
                hint="read the object again; if it is still cut, the process that wrote it was interrupted",
            )
    return headers


def walk_sound(
    data: NDArray[np.uint8], *, check_crc: bool = True, batch_bytes_max: int = (1 << 31) - 1
) -> tuple[BatchHeaders, CorruptDataError | UnsupportedFormatError | None]:
    """The headers of the batches before the first one that is not sound, and the error that says why, if any."""
    try:
        return walk(data, check_crc=check_crc, batch_bytes_max=batch_bytes_max), None
    except (CorruptDataError, UnsupportedFormatError) as error:
        return walk(data[: error.position or 0], check_crc=False), error


def _walk(data: NDArray[np.uint8], batch_bytes_max: int, *, check_crc: bool) -> BatchHeaders:
    runs: list[BatchHeaders] = []
    position = 0
    while True:
        positions, position, magic = _find(data, position, batch_bytes_max)
        runs.append(_read(data, positions, position, check_crc=check_crc))
        if magic is not None:
            _check_start(data, position, batch_bytes_max)
        if magic is None or magic == NEWEST_MAGIC:
            return _joined(runs)
        from maxbrod.batch import legacy  # noqa: PLC0415 - loading numba costs seconds, and old messages are rare

        runs.append(legacy.walk(data, position, batch_bytes_max, check_crc=check_crc))
        if runs[-1].end == position:
            return _joined(runs)
        position = runs[-1].end


def _find(data: NDArray[np.uint8], position: int, batch_bytes_max: int) -> tuple[list[int], int, int | None]:
    """Positions of the whole batches from `position` on, where the last one ends, and the magic that ended them.

    It runs once per batch, which costs more than the CRC of a small one: so there is one look-up and one sum for each.
    """
    length_min, length_max = HEADER_BYTES - LOG_OVERHEAD_BYTES, batch_bytes_max - LOG_OVERHEAD_BYTES
    end, unpack = data.size, _LENGTH.unpack_from
    view, last = memoryview(data), end - LOG_OVERHEAD_BYTES - 4
    positions: list[int] = []
    found = positions.append
    while position < last:
        length, magic = unpack(view, position)
        after = position + LOG_OVERHEAD_BYTES + length
        if magic != NEWEST_MAGIC or not length_min <= length <= length_max or after > end:
            return positions, position, magic
        found(position)
        position = after
    return positions, position, None


def _check_start(data: NDArray[np.uint8], position: int, batch_bytes_max: int) -> None:
    """Refuse an unknown magic and an impossible length, the only fields used before the CRC is checked."""
    offset, length, magic = _START.unpack_from(data, position)
    if magic not in _SIZE_MIN:
        raise UnsupportedFormatError(
            f"a batch has magic {magic}; 0, 1 and 2 are known", offset=offset, position=position, hint=_NEWER
        )
    if not _SIZE_MIN[magic] <= length + LOG_OVERHEAD_BYTES <= batch_bytes_max:
        raise CorruptDataError(
            f"a batch of magic {magic} has an impossible length of {length} bytes",
            offset=offset,
            position=position,
            hint=_DAMAGED,
        )


def _read(data: NDArray[np.uint8], positions: list[int], end: int, *, check_crc: bool) -> BatchHeaders:
    """Read the headers of batches that follow each other, up to `end`."""
    headers = headers_at(data, np.array(positions, np.int64), end)
    sound = len(headers)
    if check_crc:
        computed = _computed_crc(data, positions, (headers.position + headers.size).tolist())
        sound = int(np.argmax(np.append(computed != headers["crc"], True)))
    # In byte order, so that everything before the position of an error is valid.
    _check_fields(headers if sound == len(headers) else headers.take(slice(sound)))
    if check_crc:
        refuse_wrong_crc(headers, computed)
    return headers


def headers_at(data: NDArray[np.uint8], position: NDArray[np.int64], end: int) -> BatchHeaders:
    """The headers of batches that follow each other, up to `end`. Nothing is checked."""
    fields = _columns(data[position[:, None] + np.arange(HEADER_BYTES)].view(HEADER_DTYPE).reshape(-1))
    size = np.diff(position, append=end)
    return BatchHeaders(position=position, size=size, fields=fields, end=end, tail=data.size - end)


def _columns(rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {name: rows[name].astype(HEADER_DTYPE[name].newbyteorder("=")) for name in HEADER_DTYPE.names or ()}


def read_headers(rows: bytes, position: NDArray[np.int64], size: NDArray[np.int64]) -> BatchHeaders:
    """Read consecutive headers of magic 2 without their records. `position` has the positions of the batches.

    CorruptDataError and UnsupportedFormatError as in `walk`. Checksums are not checked.
    """
    end = int(position[-1] + size[-1]) if len(position) else 0
    headers = BatchHeaders(position=position, size=size, fields=_columns(np.frombuffer(rows, HEADER_DTYPE)), end=end)
    _check_fields(headers)
    return headers


def check_crc(buffer: Any, headers: BatchHeaders, *, object_name: str | None = None) -> None:  # noqa: ANN401 - as above
    """Check the CRCs of batches of magic 2 that `walk` has not checked. Raises the same CorruptDataError."""
    ends = (headers.position + headers.size).tolist()
    with naming(object_name):
        refuse_wrong_crc(headers, _computed_crc(as_bytes_array(buffer), headers.position.tolist(), ends))


def _computed_crc(data: NDArray[np.uint8], positions: list[int], ends: list[int]) -> NDArray[np.uint32]:
    value = google_crc32c.value
    return np.array(
        [value(data[start + CRC_START : stop]) for start, stop in zip(positions, ends, strict=True)], np.uint32
    )


def refuse_wrong_crc(headers: BatchHeaders, computed: NDArray[np.uint32]) -> None:
    wrong = np.flatnonzero(computed != headers["crc"])
    if wrong.size:
        row = int(wrong[0])
        raise CorruptDataError(
            f"the checksum of a batch is {int(headers['crc'][row]):08x}, but its bytes give {int(computed[row]):08x}",
            offset=int(headers["base_offset"][row]),
            position=int(headers.position[row]),
            hint="the bytes are damaged; read them again from the source",
        )


def _check_fields(headers: BatchHeaders) -> None:
    unknown = (headers["attributes"] & ~np.int16(_ATTRIBUTES_KNOWN)) != 0
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        raise UnsupportedFormatError(
            f"a batch has attributes {int(headers['attributes'][row]) & 0xFFFF:#06x}, with undefined flags",
            offset=int(headers["base_offset"][row]),
            position=int(headers.position[row]),
            hint=_NEWER,
        )
    count = headers["count"]
    span = headers["last_offset_delta"].astype(np.int64) + 1
    # The last offset is negative if base and delta together exceed 64 bits.
    wrong = (headers["base_offset"] < 0) | (headers.last_offset < 0) | (span < 1) | (count < 0) | (count > span)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise CorruptDataError(
            f"a batch claims to hold {int(count[row])} records in {int(span[row])} offsets",
            offset=int(headers["base_offset"][row]),
            position=int(headers.position[row]),
            hint=_DAMAGED,
        )


def _joined(runs: list[BatchHeaders]) -> BatchHeaders:
    runs = [run for run in runs if len(run)] or runs[-1:]
    if len(runs) == 1:
        return runs[0]
    return BatchHeaders(
        position=np.concatenate([run.position for run in runs]),
        size=np.concatenate([run.size for run in runs]),
        fields={name: np.concatenate([run[name] for run in runs]) for name in runs[0].fields},
        end=runs[-1].end,
        tail=runs[-1].tail,
    )

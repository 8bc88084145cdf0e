"""Scans a large log file at its two ends. Its index says where a batch begins near the end of the file.

The middle is not read. It is assumed to be plain: batches without holes and transactions, whose leader epochs begin
where the broker has noted it. Whoever reads the segment proves that (`reading.read_batches`), and a backup reads every
byte anyway. Nothing is trusted of the index but that a batch may begin at its positions: those that are used are
looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.headers import HEADER_BYTES, BatchHeaders, read_headers
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.layouts.logdir.reading import is_plain
from maxbrod.layouts.logdir.scanning import END_BYTES, ScannedLog, scan
from maxbrod.storage.interface import ByteRange, Storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from maxbrod.layouts.logdir.names import LogFile

MIDDLE_BYTES_MIN: Final = 4 << 20
"""A smaller middle is not worth reading an index."""
_INDEX_BYTES_MAX: Final = 64 << 20
"""The index of a file of 2 GiB, which is the largest, has 4 MiB with a broker's defaults."""
_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_SAMPLES: Final = 16
"""Headers of the middle that are looked at, since an assumption that fails costs a second copy."""


def scan_ends(storage: Storage, file: LogFile, noted: Sequence[tuple[int, int]]) -> ScannedLog | None:
    """The file, known by its ends; None if all of it must be scanned. `noted`: the leader epochs and their starts."""
    if file.swap or file.size < END_BYTES + MIDDLE_BYTES_MIN:
        return None
    try:
        headers = _sampled(storage, file)
        found = None if headers is None else _assumed(file, headers, noted)
        if found is None:
            return None
        middle_end = found.stop
        scan(storage, file, before=found)
    except (CorruptDataError, UnsupportedFormatError, ObjectNotFoundError):
        return None
    tally = found.tally
    plain = not found.events and tally.records == tally.end_offset - tally.base_offset
    return found if plain and found.stop > middle_end else None


def _sampled(storage: Storage, file: LogFile) -> BatchHeaders | None:
    """The first header of the file, some of the middle, and that of the batch with which the end begins."""
    positions = _positions(storage, file)
    positions = positions[: int(np.searchsorted(positions, file.size - END_BYTES, side="right"))]
    if not positions.size or positions[-1] < MIDDLE_BYTES_MIN:
        return None
    rows = np.linspace(0, positions.size - 1, min(_SAMPLES, positions.size)).astype(np.int64)
    at = np.unique(np.append(np.int64(0), positions[rows]))
    ranges = [ByteRange(start=int(position), size=HEADER_BYTES) for position in at]
    read = b"".join(bytes(each) for each in storage.get_ranges(file.path, ranges))
    return read_headers(read, at, np.full(at.size, HEADER_BYTES, np.int64))


def _positions(storage: Storage, file: LogFile) -> NDArray[np.int64]:
    """The rising positions in the index of a file."""
    path = f"{file.path.removesuffix('.log')}.index"
    if storage.head(path).size > _INDEX_BYTES_MAX:
        return np.empty(0, np.int64)
    data = storage.get(path)
    positions = np.frombuffer(data[: len(data) - len(data) % _ENTRY.itemsize], _ENTRY)["position"].astype(np.int64)
    # The index of the last file is allocated in advance: zeros follow if its broker was killed.
    rising = np.diff(positions, prepend=0) > 0
    return positions if rising.all() else positions[: int(rising.argmin())]


def _assumed(file: LogFile, headers: BatchHeaders, noted: Sequence[tuple[int, int]]) -> ScannedLog | None:
    """The file up to the last of these headers, if nothing in them shows that it is not plain."""
    offsets = headers["base_offset"]
    first, last = int(offsets[0]), int(offsets[-1])
    epochs = [(int(headers["leader_epoch"][0]), first), *(each for each in noted if first < each[1] < last)]
    if first != file.base_offset or (np.diff(offsets) <= 0).any() or not is_plain(headers, epochs).all():
        return None
    found = ScannedLog(file=file, checked=False, middle_read=False, stop=int(headers.position[-1]))
    found.epochs += epochs
    found.tally.base_offset, found.tally.end_offset, found.tally.records = first, last, last - first
    return found

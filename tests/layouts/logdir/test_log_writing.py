"""A log that is written is the log that was, and its indexes lead a broker to every offset and every time."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.headers import walk
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.logdir.writer import LogWriter, SegmentIndexes, WrittenLog
from maxbrod.model import AbortedTransaction
from support.native_logs import ABORT, COMMIT, data_batch, marker, pack
from support.plain_batches import Record

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, batches: list[bytes], *, start: int = 0, end: int, segment_bytes: int = 1 << 30) -> WrittenLog:
    """Each batch by itself, as the smallest piece that may come."""
    folder.mkdir()
    writer = LogWriter([folder], start=start, segment_bytes=segment_bytes)
    for batch in batches:
        data = np.frombuffer(batch, np.uint8)
        writer.append(data, walk(data))
    return writer.finish(end)


def names(folder: Path, suffix: str = "log") -> list[int]:
    return [int(each.stem) for each in sorted(folder.glob(f"*.{suffix}"))]


def transactional(offset: int, producer_id: int) -> bytes:
    return data_batch(offset, 2, attributes=0x10, producer_id=producer_id, producer_epoch=0, base_sequence=0)


def aborted_in(file: Path) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack(">hqqqq", file.read_bytes()))


def test_a_log_is_written_byte_for_byte_and_rolls_where_a_segment_is_full(tmp_path: Path) -> None:
    batches = [data_batch(offset, 10, leader_epoch=offset // 30) for offset in range(0, 100, 10)]
    size = len(batches[0])
    log = write(tmp_path / "log", batches, end=100, segment_bytes=3 * size)
    assert names(tmp_path / "log") == [0, 30, 60, 90, 100]
    assert b"".join(each.read_bytes() for each in sorted((tmp_path / "log").glob("*.log"))) == b"".join(batches)
    assert (log.base, log.start, log.end, log.bytes, log.records, log.segments) == (0, 0, 100, 10 * size, 100, 4)
    assert (tmp_path / "log" / "leader-epoch-checkpoint").read_text() == "0\n4\n0 0\n1 30\n2 60\n3 90\n"


def test_pieces_of_many_batches_roll_as_single_ones_do(tmp_path: Path) -> None:
    batches = [data_batch(offset, 10) for offset in range(0, 200, 10)]
    write(tmp_path / "single", batches, end=200, segment_bytes=3 * len(batches[0]))
    write(tmp_path / "many", [b"".join(batches)], end=200, segment_bytes=3 * len(batches[0]))
    single, many = (
        {each.name: each.read_bytes() for each in (tmp_path / name).iterdir()} for name in ("single", "many")
    )
    assert single == many


def test_a_log_ends_where_it_did_though_nothing_stands_there(tmp_path: Path) -> None:
    log = write(tmp_path / "log", [data_batch(7, 3)], start=5, end=40)
    assert (names(tmp_path / "log"), log.base, log.end) == ([5, 40], 5, 40)
    assert names(tmp_path / "log", "snapshot") == [40]


def test_a_log_without_a_batch_begins_at_its_end(tmp_path: Path) -> None:
    log = write(tmp_path / "log", [], start=30, end=30)
    assert (names(tmp_path / "log"), log.base, log.segments) == ([30], 30, 0)


def test_a_hole_wider_than_an_index_can_hold_begins_a_segment(tmp_path: Path) -> None:
    far = 3 << 31
    write(tmp_path / "log", [data_batch(0), data_batch(far, 2), data_batch(far + 9)], end=far + 10)
    assert names(tmp_path / "log") == [0, far, far + 10]


def test_batches_out_of_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="does not follow"):
        write(tmp_path / "log", [data_batch(10, 5), data_batch(14, 5)], end=20)
    with pytest.raises(CorruptDataError, match="after its end"):
        write(tmp_path / "short", [data_batch(0, 5)], end=4)


def test_aborted_transactions_are_noted_where_their_markers_stand(tmp_path: Path) -> None:
    batches = [
        *(transactional(0, 1), transactional(2, 2), transactional(4, 3)),
        *(marker(6, 1, ABORT), marker(7, 3, COMMIT), marker(8, 2, ABORT), marker(9, 4, ABORT)),
    ]
    write(tmp_path / "log", batches, end=10)
    # Version, producer, first and last offset, and where all that stands before is decided.
    assert aborted_in(tmp_path / "log" / f"{0:020}.txnindex") == [(0, 1, 0, 6, 2), (0, 2, 2, 8, 9)]


def test_an_abort_is_known_though_its_marker_stands_behind_the_end(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    writer = LogWriter([tmp_path / "log"], start=0)
    data = np.frombuffer(transactional(0, 1) + transactional(2, 2), np.uint8)
    writer.append(data, walk(data))
    writer.finish(4, [AbortedTransaction(producer_id=2, first_offset=2, last_offset=3)])
    assert aborted_in(tmp_path / "log" / f"{0:020}.txnindex") == [(0, 2, 2, 3, 4)]


def test_replicas_are_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for each in folders:
        each.mkdir()
    writer = LogWriter(folders, start=0)
    data = np.frombuffer(data_batch(0, 5), np.uint8)
    writer.append(data, walk(data))
    writer.finish(5)
    one, two = ({each.name: each.read_bytes() for each in folder.iterdir()} for folder in folders)
    assert one == two


@given(
    st.lists(st.tuples(st.integers(100, 9000), st.integers(-5, 50), st.integers(1, 40)), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_indexes_lead_to_every_offset_and_every_time(batches: list[tuple[int, int, int]], piece: int) -> None:
    """Sizes, highest timestamps and numbers of offsets of batches, added in pieces."""
    sizes, times, counts = (np.array(each, np.int64) for each in zip(*batches, strict=True))
    position, last = np.cumsum(sizes) - sizes, 1000 + np.cumsum(counts) - 1
    indexes = SegmentIndexes(1000)
    for first in range(0, len(batches), piece):
        rows = slice(first, first + piece)
        indexes.add(position[rows], last[rows], times[rows])
    files = indexes.files()
    offsets = list(struct.iter_unpack(">ii", files["index"]))
    stamps = list(struct.iter_unpack(">qi", files["timeindex"]))
    known = dict(zip((last - 1000).tolist(), position.tolist(), strict=True))
    assert all(known[offset] == place for offset, place in offsets)
    assert all(before < after for before, after in pairwise(place >> 12 for _, place in offsets))
    # No stretch of the log longer than an interval and a batch is without an entry.
    places = [0, *(place for _, place in offsets), int(sizes.sum())]
    assert all(after - before <= 4096 + 9000 for before, after in pairwise(places))
    assert all(before < after for before, after in pairwise(stamp for stamp, _ in stamps))
    for stamp, offset in stamps:
        # What is later than an entry's time stands behind the entry's batch.
        assert not (times[last - 1000 <= offset] > stamp).any()
        assert times[(last - 1000).tolist().index(offset)] == stamp
    assert (stamps[-1][0] if stamps else -1) == max(int(times.max()), -1)


def test_records_without_a_time_are_in_no_index_of_times(tmp_path: Path) -> None:
    write(tmp_path / "log", [pack([Record(offset=0, timestamp=-1, key=None, value=None)])], end=1)
    assert (tmp_path / "log" / f"{0:020}.timeindex").read_bytes() == b""

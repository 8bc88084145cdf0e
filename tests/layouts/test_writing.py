from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.batch.decode import decode
from maxbrod.batch.headers import walk
from maxbrod.errors import CorruptDataError, UnsupportedFormatError, UsageError
from maxbrod.layouts.kafka import writer as partition_module
from maxbrod.layouts.kafka.format import Compression, SegmentLimits, is_framed
from maxbrod.layouts.kafka.reader import read_log, read_logs
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import Codec
from support.native_logs import Batch, archive, batches, check_rows, data_batch, logs, new_storage, pack
from support.plain_batches import Record, write_batch

LIMITS = st.builds(
    SegmentLimits,
    bytes_max=st.sampled_from([1, 100, 400, 1 << 20]),
    records_max=st.sampled_from([None, 1, 5]),
    hole_offsets_min=st.sampled_from([1, 100, 1000]),
)


def chunked(data: st.DataObject, log: list[Batch]) -> list[bytes]:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(log)), max_size=3)))
    return [b"".join(batch.data for batch in log[start:end]) for start, end in pairwise([0, *cuts, len(log)])]


@settings(max_examples=150)
@given(log=batches(), data=st.data(), mode=st.sampled_from(["auto", "source"]), packed=st.booleans(), limits=LIMITS)
def test_the_log_inside_is_byte_for_byte_what_came_in(
    log: list[Batch], data: st.DataObject, mode: str, packed: bool, limits: SegmentLimits
) -> None:
    storage = new_storage()
    slices = archive(storage, chunked(data, log), mode=mode, packed=packed, limits=limits)

    assert logs(storage, slices) == b"".join(batch.data for batch in log)
    check_rows(log, slices, limits)
    assert [problem for each in slices for problem in verify_slice(storage, each)] == []


@settings(max_examples=100)
@given(log=batches(), data=st.data(), packed=st.booleans(), limits=LIMITS)
def test_an_unpacked_archive_has_the_same_records_in_the_same_batches(
    log: list[Batch], data: st.DataObject, packed: bool, limits: SegmentLimits
) -> None:
    storage = new_storage()
    slices = archive(storage, chunked(data, log), mode="zstd", packed=packed, limits=limits)
    came, stored = b"".join(batch.data for batch in log), logs(storage, slices)

    assert decode(stored).equals(decode(came))
    before, after = walk(came), walk(stored, whole=True)
    assert len(before) == len(after)
    for name in set(before.fields) - {"batch_length", "crc", "attributes"}:
        assert before[name].tolist() == after[name].tolist(), name
    same = (before["magic"] < 2) | before.control | (before["count"] == 0)
    assert (after["attributes"] == np.where(same, before["attributes"], before["attributes"] & ~7)).all()
    assert all(is_framed(each.path) for each in slices)
    check_rows(log, slices, None)
    assert [problem for each in slices for problem in verify_slice(storage, each)] == []


@pytest.mark.parametrize("mode", ["auto", "source", "zstd"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_chunk_may_be_split_at_every_boundary(mode: str, packed: bool) -> None:
    parts = [data_batch(10 * i, 3, codec=Codec(i % 5), value=b"x" * 50) for i in range(7)]
    log = b"".join(parts)
    for cut in range(len(parts) + 1):
        size = sum(map(len, parts[:cut]))
        storage = new_storage()
        chunks = [b"".join(parts[:cut]), b"".join(parts[cut:])]
        slices = archive(storage, chunks, mode=mode, packed=packed, limits=SegmentLimits(bytes_max=max(size, 1)))

        assert decode(logs(storage, slices)).equals(decode(log))
        assert [row.base_offset for row in slices[1:]] == [row.end_offset + 7 for row in slices[:-1]]


def test_a_segment_ends_with_the_batch_that_reaches_a_limit() -> None:
    parts = [data_batch(i) for i in range(9)]
    storage = new_storage()
    limits = SegmentLimits(bytes_max=2 * len(parts[0]))

    rows = archive(storage, [b"".join(parts)], limits=limits)
    assert [(row.base_offset, row.end_offset) for row in rows] == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 9)]
    assert len({row.path for row in rows}) == 5
    rows = archive(storage, parts, limits=SegmentLimits(records_max=4))
    assert [row.records for row in rows] == [4, 4, 1]


def test_a_wide_hole_ends_the_slice_but_not_the_object() -> None:
    storage = new_storage()
    chunks = [data_batch(0) + data_batch(1000) + data_batch(2001), data_batch(9000)]

    rows = archive(storage, chunks)
    assert [(row.base_offset, row.end_offset) for row in rows] == [(0, 1001), (2001, 2002), (9000, 9001)]
    assert len({row.path for row in rows}) == 1
    assert [row.position for row in rows[1:]] == [rows[0].bytes, rows[0].bytes + rows[1].bytes]
    assert logs(storage, rows) == b"".join(chunks)


def test_a_thousand_quiet_partitions_share_one_object_of_each_kind() -> None:
    storage = new_storage()
    noise = np.random.default_rng(1).bytes(300)
    with ArchiveWriter(storage, run_id="run-1") as writer:
        parts = [writer.partition(topic="t", topic_id="id", partition=i, packed=True) for i in range(1000)]
        for number, part in enumerate(parts):
            batch = data_batch(number, value=noise if number % 2 else b"a" * 300)
            part.append(np.frombuffer(batch, np.uint8), walk(batch))
            part.close()

    assert sorted(is_framed(each.path) for each in storage.list()) == [False, True]
    for number, part in enumerate(parts):
        assert logs(storage, part.slices) == data_batch(number, value=noise if number % 2 else b"a" * 300)


@pytest.mark.parametrize("mode", ["auto", "source", "zstd"])
def test_partitions_that_take_turns_never_mix_in_a_pack(mode: str) -> None:
    storage = new_storage()
    with ArchiveWriter(storage, run_id="run-1", compression=Compression.parse(mode)) as writer:
        parts = [writer.partition(topic="t", topic_id="id", partition=i, packed=True) for i in range(3)]
        for turn in range(5):
            for number, part in enumerate(parts):
                batch = data_batch(turn, value=b"%d" % number * 100)
                part.append(np.frombuffer(batch, np.uint8), walk(batch))

    assert len(list(storage.list())) == 1
    for number, part in enumerate(parts):
        expected = b"".join(data_batch(turn, value=b"%d" % number * 100) for turn in range(5))
        assert logs(storage, part.slices) == expected


def test_a_full_pack_takes_no_further_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.layouts.kafka.writer.PACK_BYTES_MAX", 100)
    storage = new_storage()
    rows = archive(storage, [data_batch(i, value=b"x" * 100) for i in (0, 5000, 9000)], packed=True)

    assert len({row.path for row in rows}) == len(list(storage.list())) == 3


@pytest.mark.parametrize("packed", [False, True])
def test_a_partition_without_batches_makes_no_object(packed: bool) -> None:
    storage = new_storage()

    assert archive(storage, [b""], packed=packed) == ()
    assert list(storage.list()) == []


def test_batches_that_came_compressed_stay_out_of_frames_and_json_goes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_module, "SAMPLE_BYTES", 1000)
    plain = [data_batch(i, value=b'{"state":"shipped","amount":1}' * 5) for i in range(20)]
    packed = [data_batch(i, 20, value=b'{"state":"shipped"}', codec=Codec.LZ4) for i in range(100, 2000, 20)]
    storage = new_storage()
    rows = archive(storage, [b"".join(plain), b"".join(packed)], mode="auto", limits=SegmentLimits(records_max=20))

    assert [is_framed(row.path) for row in rows] == [row.base_offset < 100 for row in rows]
    assert {row.codec for row in rows} == {"none", "lz4"}
    assert sum(row.bytes for row in rows[:1]) * 2 <= rows[0].raw_bytes


def test_a_first_chunk_of_one_marker_does_not_decide_for_a_segment() -> None:
    """Data that is too small for a decision waits for more."""
    storage = new_storage()
    chunks = [data_batch(0, value=b""), *(data_batch(i, value=b"y" * 40_000) for i in range(1, 40))]
    rows = archive(storage, chunks, mode="auto")

    assert [is_framed(row.path) for row in rows] == [True]
    assert logs(storage, rows) == b"".join(chunks)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_records_that_cannot_be_unpacked_are_kept_as_they_came(codec: Codec) -> None:
    broken = write_batch([], base_offset=5, body=b"\x99 no such frame", attributes=int(codec), count=1)
    log = data_batch(0, 3, codec=codec) + broken + data_batch(6, 3, codec=codec)
    storage = new_storage()
    stored = logs(storage, archive(storage, [log], mode="zstd"))

    position = walk(stored).position.tolist()
    assert stored[position[1] : position[2]] == broken
    sound = data_batch(0, 3, codec=codec) + data_batch(6, 3, codec=codec)
    assert decode(stored[: position[1]] + stored[position[2] :]).equals(decode(sound))


def test_a_compressed_control_batch_stays_as_it_came() -> None:
    control = data_batch(0, codec=Codec.GZIP, attributes=0x30, producer_id=1)
    storage = new_storage()

    assert logs(storage, archive(storage, [control], mode="zstd")) == control


def test_a_batch_that_unpacks_without_end_stays_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.layouts.kafka.frames.BATCH_BYTES_MAX", 10_000)
    bomb = data_batch(0, value=bytes(1 << 20), codec=Codec.ZSTD)
    storage = new_storage()

    assert logs(storage, archive(storage, [bomb], mode="zstd")) == bomb


def test_an_unknown_codec_is_refused() -> None:
    strange = write_batch([], base_offset=5, body=b"?", attributes=6, count=1)

    with pytest.raises(UnsupportedFormatError, match="codec 6"):
        archive(new_storage(), [strange])


def test_batches_with_bytes_between_them_are_refused() -> None:
    log = np.frombuffer(data_batch(0) + data_batch(1) + data_batch(2), np.uint8)
    storage = new_storage()

    with ArchiveWriter(storage, run_id="r") as writer:
        part = writer.partition(topic="t", topic_id="id", partition=0, packed=False)
        with pytest.raises(UsageError, match="contiguous"):
            part.append(log, walk(log).take(np.array([0, 2])))
    assert list(storage.list()) == []


@pytest.mark.parametrize("chunks", [[(0, 3), (2, 1)], [(5, 1), (4, 1)], [(7, 2), (7, 2)]])
def test_an_offset_is_never_archived_twice(chunks: list[tuple[int, int]]) -> None:
    parts = [data_batch(offset, count) for offset, count in chunks]
    for delivered in (parts, [b"".join(parts)]):
        storage = new_storage()
        with pytest.raises(CorruptDataError, match="orders-3, at offset"):
            archive(storage, delivered)
        assert list(storage.list()) == []


@pytest.mark.parametrize("exact", [False, True])
def test_a_delete_horizon_is_never_taken_for_the_lowest_timestamp(exact: bool) -> None:
    """Compaction stores it in place of the first timestamp, so that only the records show it."""
    records = [Record(offset=i, timestamp=time, key=b"k", value=None) for i, time in enumerate((70, 60, 90))]
    log = pack(records, Codec.LZ4, attributes=0x40, base_timestamp=5000) + data_batch(3, codec=Codec.LZ4)
    (row,) = archive(new_storage(), [log], exact=exact)

    assert (row.min_timestamp, row.max_timestamp) == (60, 1003)


def test_a_stream_of_pieces_is_the_log_whatever_is_asked_for_at_once() -> None:
    parts = [data_batch(i, value=np.random.default_rng(i).bytes(i * 40)) for i in range(30)]
    for mode in ("source", "zstd"):
        storage = new_storage()
        (row,) = archive(storage, parts, mode=mode)
        for request in (1, 7, 100, 1 << 20):
            pieces = list(read_logs(storage, row, request_bytes=request))
            assert b"".join(data.tobytes() for data, _ in pieces) == b"".join(parts)
            assert all(headers.end == data.size and not headers.tail for data, headers in pieces)


def test_reading_names_object_offset_and_way_out() -> None:
    storage = new_storage()
    (row,) = archive(storage, [data_batch(5)])
    object.__setattr__(row, "digest", "crc32c:00000000")

    with pytest.raises(CorruptDataError, match="digest") as caught:
        read_log(storage, row)
    assert caught.value.object_name == storage.name_of(row.path)
    assert caught.value.offset == 5
    assert caught.value.hint is not None
    object.__setattr__(row, "digest", "sha999:00")
    with pytest.raises(UnsupportedFormatError, match="algorithm"):
        read_log(storage, row)


@pytest.mark.parametrize("mode", ["source", "zstd"])
def test_a_batch_that_misstates_its_highest_timestamp_leaves_that_of_its_slice_unknown(mode: str) -> None:
    storage = new_storage()
    odd = data_batch(5, 3, max_timestamp=-1)
    (slice_,) = archive(storage, [data_batch(0, 5), odd, data_batch(8)], mode=mode, exact=False)
    assert (slice_.min_timestamp, slice_.max_timestamp) == (1000, None)
    assert verify_slice(storage, slice_) == []
    (plain,) = archive(storage, [data_batch(0, 5), data_batch(5, 3, attributes=0x08, max_timestamp=-1)], mode=mode)
    assert plain.max_timestamp == 1004, "with log-append time, all records have the highest"

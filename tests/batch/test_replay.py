"""Archived batches become what a broker takes from a client: the committed records, all of them, where they belong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.batch.cuts import Cut
from maxbrod.batch.headers import HEADER_BYTES, walk
from maxbrod.batch.patch import patch
from maxbrod.batch.replay import Oversized, Replayed, replay
from maxbrod.model import Codec
from support.old_messages import message, wrapper
from support.plain_batches import Record, write_batch
from support.record_examples import timestamps
from support.replay_cases import Log, appended, cuts, logs, packed, replay_all, wanted

ALL = Cut()
ROOM = 1 << 20
codecs = st.one_of(st.none(), st.sampled_from(list(Codec)))


def run(data: bytes, *, exact: bool = False, cut: Cut = ALL, room: int = ROOM, codec: Codec | None = None) -> Replayed:
    return replay(data, walk(data), [], cut=cut, exact=exact, batch_bytes_max=room, codec=codec)


def many(count: int, *, first: int = 0, step: int = 1, value: bytes = b"v") -> list[Record]:
    return [Record(offset=first + step * i, timestamp=i, key=b"k", value=value) for i in range(count)]


@settings(max_examples=80)
@given(data=st.data(), log=logs(), codec=codecs, room=st.sampled_from([120, 300, ROOM]))
def test_exact_puts_every_committed_record_at_its_own_offset(
    data: st.DataObject, log: Log, codec: Codec | None, room: int
) -> None:
    cut = data.draw(cuts(log))
    pieces = sorted(data.draw(st.sets(st.integers(1, len(log.entries)), max_size=2)))
    results = replay_all(log, pieces, cut=cut, exact=True, codec=codec, batch_bytes_max=room)

    assert appended(results) == wanted(log, cut)


@settings(max_examples=80)
@given(data=st.data(), log=logs(), codec=codecs, room=st.sampled_from([120, 300, ROOM]))
def test_append_keeps_every_committed_record_in_order_and_tells_where_it_came_from(
    data: st.DataObject, log: Log, codec: Codec | None, room: int
) -> None:
    cut = data.draw(cuts(log))
    pieces = sorted(data.draw(st.sets(st.integers(1, len(log.entries)), max_size=2)))
    results = replay_all(log, pieces, cut=cut, exact=False, codec=codec, batch_bytes_max=room)
    expected = wanted(log, cut)

    assert appended(results) == [replace(record, offset=row) for row, record in enumerate(expected)]
    told = [
        first + i
        for result in results
        for first, count in zip(result.ranges.first_offset.tolist(), result.ranges.count.tolist(), strict=True)
        for i in range(count)
    ]
    assert told == [record.offset for record in expected]
    counts = np.concatenate([result.headers["count"] for result in results])
    firsts = (np.cumsum(counts) - counts).tolist()
    source_offset = np.concatenate([result.source_offset for result in results])
    assert source_offset.tolist() == [expected[row].offset for row in firsts]


@settings(max_examples=40)
@given(log=logs(["plain", "committed", "marker", "horizon"], holes=False), exact=st.booleans())
def test_records_of_batches_that_may_stay_are_the_same_bytes(log: Log, exact: bool) -> None:
    before = walk(log.data)
    kept = np.flatnonzero(~before.control)
    result = replay(log.data, before, [], cut=ALL, exact=exact, batch_bytes_max=ROOM)

    def bodies(data: bytes, positions: list[int], sizes: list[int]) -> list[bytes]:
        return [data[at + HEADER_BYTES : at + size] for at, size in zip(positions, sizes, strict=True)]

    after = result.headers
    assert bodies(result.data.tobytes(), after.position.tolist(), after.size.tolist()) == bodies(
        log.data, before.position[kept].tolist(), before.size[kept].tolist()
    )
    assert set(after["attributes"].tolist()) <= set(range(5))


def test_the_archived_bytes_are_never_changed() -> None:
    log = np.frombuffer(packed(many(3), attributes=0x10) + packed(many(2, first=3, step=2)), np.uint8).copy()
    before = log.tobytes()
    replay(log, walk(log), [], cut=ALL, exact=True, batch_bytes_max=ROOM)

    assert log.tobytes() == before


def test_a_replay_can_be_stamped_in_one_go() -> None:
    result = run(packed(many(3), Codec.LZ4) + packed(many(3, first=9, step=3)), exact=True)
    patched = patch(result.data, result.headers, producer_id=77, producer_epoch=1, base_sequence=np.arange(4))

    assert walk(result.data)["producer_id"].tolist() == [77] * 4
    assert patched["base_sequence"].tolist() == [0, 1, 2, 3]


def test_holes_are_told_before_the_batch_that_follows_them_and_across_calls() -> None:
    log = Log([packed(many(2, first=10)), packed(many(3, first=15, step=2)), write_batch([], base_offset=20)], [], [])
    more = Log([packed(many(1, first=30))], [], [])
    first = replay_all(log, [], cut=ALL, exact=True, batch_bytes_max=ROOM, position=4)[0]
    second = replay_all(more, [], cut=ALL, exact=True, batch_bytes_max=ROOM, position=first.position)[0]

    assert first.source_offset.tolist() == [10, 15, 17, 19]
    assert first.hole.tolist() == [6, 3, 1, 1]
    assert (first.position, second.hole.tolist(), second.position) == (20, [10], 31)


def test_nothing_kept_leaves_the_position_where_it_was() -> None:
    log = packed(many(3), attributes=0x30)
    result = replay(log, walk(log), [], cut=ALL, exact=True, batch_bytes_max=ROOM, position=0)

    assert (len(result.headers), result.data.size, result.position, result.oversized) == (0, 0, 0, ())
    assert run(b"").position == 0


def test_append_closes_the_holes_of_a_compacted_batch_in_one_batch() -> None:
    result = run(packed(many(50, first=5, step=3), Codec.ZSTD, base_offset=2, last_offset_delta=400))

    assert result.headers["count"].tolist() == [50]
    assert Codec(int(result.headers.codec[0])) is Codec.ZSTD
    assert result.ranges.first_offset.tolist() == list(range(5, 155, 3))


def test_offsets_that_follow_each_other_make_one_range_however_many_batches_they_come_in() -> None:
    """The map of offsets stays small."""
    log = [packed(many(3, first=first), codec) for first, codec in zip(range(0, 15, 3), Codec, strict=True)]
    result = run(b"".join([*log, packed(many(2, first=15, step=2)), packed(many(4, first=18))]))

    assert result.ranges.first_offset.tolist() == [0, 17]
    assert result.ranges.count.tolist() == [16, 5]


def test_a_batch_with_all_its_records_wanted_stays_as_it_is_under_limits_of_time() -> None:
    log = packed(many(9), Codec.GZIP)
    result = run(log, cut=Cut(since_ms=0, until_ms=9))

    assert result.data[HEADER_BYTES:].tobytes() == log[HEADER_BYTES:]


def test_since_is_inclusive_and_until_exclusive_for_times_out_of_order() -> None:
    times = [500, 100, 300, 299, 400, -5]
    log = packed([Record(offset=i, timestamp=time, key=None, value=b"v") for i, time in enumerate(times)], Codec.LZ4)
    result = run(log, exact=True, cut=Cut(since_ms=299, until_ms=400))

    assert [(record.offset, record.timestamp) for record in appended([result])] == [(2, 300), (3, 299)]


@given(time=timestamps)
@settings(max_examples=20)
def test_log_append_time_becomes_the_create_time_of_every_record(time: int) -> None:
    result = run(packed(many(4), Codec.GZIP, attributes=0x08, max_timestamp=time))

    assert [record.timestamp for record in appended([result])] == [time] * 4
    assert not result.headers.log_append.any()


def test_old_messages_stay_in_order_around_a_batch_that_is_kept() -> None:
    old = [Record(offset=i, timestamp=i, key=b"k", value=b"%d" % i) for i in range(6)]
    entries = [message(1, old[0]), packed([old[1]]), message(0, old[2]), wrapper(1, Codec.GZIP, old[3:5])]
    result = run(b"".join([*entries, message(1, old[5])]))

    assert [record.value for record in appended([result])] == [b"%d" % i for i in range(6)]
    assert [record.timestamp for record in appended([result])] == [0, 1, -1, 3, 4, 5]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("exact", [True, False])
def test_a_changed_batch_that_is_too_large_is_split_and_nothing_is_lost(codec: Codec, exact: bool) -> None:
    rng = np.random.default_rng(1)
    records = [replace(record, value=rng.bytes(200 + record.offset)) for record in many(100, step=2)]
    result = run(packed(records, codec), exact=exact, room=1500)

    assert result.headers.size.max() <= 1500
    assert result.oversized == ()
    assert [record.value for record in appended([result])] == [record.value for record in records]
    assert exact or len(result.headers) < 40


def test_a_changed_batch_stays_whole_where_its_compressed_size_fits() -> None:
    result = run(packed(many(3000, step=2, value=b"v" * 1000), Codec.ZSTD), room=100_000)

    assert result.headers["count"].tolist() == [3000]


def test_what_no_change_makes_smaller_is_told_and_kept() -> None:
    whole = packed(many(3, value=bytes(500)))
    single = packed([*many(1, first=3), *many(1, first=9, value=bytes(700))])
    result = run(whole + single, room=600)

    assert [record.offset for record in appended([result])] == list(range(5))
    assert result.oversized == (
        Oversized(offset=0, bytes=len(whole)),
        Oversized(offset=9, bytes=int(result.headers.size[-1])),
    )


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_unpacked_batches_are_compressed_again_and_others_left_alone(codec: Codec) -> None:
    other = Codec.LZ4 if codec is not Codec.LZ4 else Codec.ZSTD
    kept = packed(many(40, first=40), other)
    result = run(packed(many(40)) + kept + packed(many(40, first=80, step=2)), codec=codec)

    assert result.headers.codec.tolist() == [codec, other, codec]
    assert result.data.tobytes().count(kept[HEADER_BYTES:]) == 1
    assert len(appended([result])) == 120


def test_a_batch_that_does_not_fit_when_compressed_again_is_split() -> None:
    noise = np.random.default_rng(2).bytes(20_000)
    records = [replace(record, value=noise[100 * i : 100 * i + 100]) for i, record in enumerate(many(200))]
    result = run(packed(records), codec=Codec.LZ4, room=5000)

    assert result.headers.size.max() <= 5000
    assert [record.value for record in appended([result])] == [record.value for record in records]


PLAIN_ONLY = """
import sys; sys.path.insert(0, sys.argv[1])
from support.plain_batches import Record, write_batch
from maxbrod.batch.cuts import Cut
from maxbrod.batch.headers import walk
from maxbrod.batch.replay import replay
from maxbrod.model import AbortedTransaction, Codec
one = lambda offset: [Record(offset=offset, timestamp=5, key=b"k", value=b"v")]
log = write_batch(one(0)) + write_batch(one(1), attributes=0x10, producer_id=1) + write_batch(one(2), attributes=0x40)
log += write_batch([], base_offset=3, last_offset_delta=4) + write_batch(one(8), attributes=0x30)
aborted = [AbortedTransaction(producer_id=1, first_offset=1, last_offset=1)]
cut = Cut(first_offset=0, end_offset=9, until_ms=6)
done = replay(log, walk(log), aborted, cut=cut, exact=True, codec=Codec.ZSTD, batch_bytes_max=1 << 20)
assert done.hole.tolist() == [0, 1], done.hole
print(sorted({"numba", "pandas", "pyarrow", "pyspark"} & set(sys.modules)))
"""


def test_batches_that_need_no_rewriting_load_no_compiler() -> None:
    command = [sys.executable, "-c", PLAIN_ONLY, str(Path(__file__).parents[1])]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr[-2000:]

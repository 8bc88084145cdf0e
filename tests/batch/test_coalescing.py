"""Small batches become large ones: the same records at the same places, whatever buffers they arrive in."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.batch.coalesce import Batches, Coalescer, JoinRule
from maxbrod.batch.cuts import Cut
from maxbrod.batch.decode import decode
from maxbrod.batch.headers import HEADER_BYTES, walk
from maxbrod.batch.replay import Replayed, replay
from maxbrod.kafka.produce.appends import stamped
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.model import Codec
from support.plain_batches import Record
from support.programs.fuzz_batches import reseal
from support.replay_cases import Log, appended, logs, packed, replay_all, wanted

ROOM = 1 << 20
EVERY = dict.fromkeys(Codec, 1 << 17)
WHOLE = ["plain", "committed", "aborted", "marker", "horizon"]
"""Kinds of batches that a broker takes as they are, or not at all."""
RULE = JoinRule(target_bytes=ROOM, small_bytes=EVERY)
rules = st.builds(
    JoinRule,
    target_bytes=st.sampled_from([150, 400, 1500, ROOM]),
    small_bytes=st.sampled_from([EVERY, dict.fromkeys(Codec, 300), {Codec.NONE: 1 << 17}]),
)


def as_batches(replayed: Replayed) -> Batches:
    return Batches(
        data=replayed.data, headers=replayed.headers, source_offset=replayed.source_offset, hole=replayed.hole
    )


def of(*batches: bytes) -> Batches:
    data = np.frombuffer(b"".join(batches), np.uint8)
    headers = walk(data)
    offset = headers["base_offset"]
    hole = np.diff(headers.last_offset + 1, prepend=offset[:1]) - headers["count"]
    hole[0] = 0
    return Batches(data=data, headers=headers, source_offset=offset, hole=hole)


def joined(inputs: list[Batches], rule: JoinRule = RULE, *, room: int = ROOM) -> list[Batches]:
    coalescer = Coalescer(rule, batch_bytes_max=room)
    return [made for each in inputs for made in coalescer.add(each)] + coalescer.finish()


def one_by_one(outputs: list[Batches]) -> list[tuple[int, int, bytes]]:
    """Hole, source offset and bytes of each batch."""
    return [
        (int(each.hole[row]), int(each.source_offset[row]), each.data[at : at + size].tobytes())
        for each in outputs
        for row, (at, size) in enumerate(zip(each.headers.position.tolist(), each.headers.size.tolist(), strict=True))
    ]


def stamped_by_one(outputs: list[Batches]) -> list[tuple[int, int, bytes]]:
    """The same after one producer has stamped them."""
    for each in outputs:
        stamped(each.data, each.headers, ProducerIdentity(producer_id=7, epoch=0), first_sequence=0)
    return one_by_one(outputs)


def replayed_of(like: Replayed, batches: Batches) -> Replayed:
    return replace(
        like, data=batches.data, headers=batches.headers, source_offset=batches.source_offset, hole=batches.hole
    )


def many(count: int, *, first: int = 0, value: bytes = b"v", time: int = 0) -> list[Record]:
    return [Record(offset=first + i, timestamp=time + i, key=b"k", value=value) for i in range(count)]


def small(codec: Codec = Codec.NONE, *, batches: int = 20, records: int = 5) -> list[bytes]:
    return [packed(many(records, first=records * i, time=1000 * i), codec) for i in range(batches)]


@settings(max_examples=100)
@given(data=st.data(), log=logs(), rule=rules, exact=st.booleans(), room=st.sampled_from([300, ROOM]))
def test_joined_batches_hold_the_same_records_at_the_same_offsets(
    data: st.DataObject, log: Log, rule: JoinRule, exact: bool, room: int
) -> None:
    pieces = sorted(data.draw(st.sets(st.integers(1, len(log.entries)), max_size=2)))
    results = replay_all(log, pieces, cut=Cut(), exact=exact, batch_bytes_max=room)
    outputs = joined([as_batches(each) for each in results], rule, room=room)

    expected = wanted(log, Cut())
    if not exact:
        expected = [replace(record, offset=row) for row, record in enumerate(expected)]
    assert appended([replayed_of(results[0], each) for each in outputs]) == expected
    sizes = [len(batch) for _, _, batch in one_by_one([as_batches(each) for each in results])]
    assert all(len(batch) <= max(room, *sizes) for _, _, batch in one_by_one(outputs))


@settings(max_examples=80)
@given(data=st.data(), log=logs(WHOLE, holes=False), rule=rules)
def test_the_same_batches_are_joined_whatever_buffers_they_arrive_in(
    data: st.DataObject, log: Log, rule: JoinRule
) -> None:
    pieces = sorted(data.draw(st.sets(st.integers(1, len(log.entries)), max_size=3)))
    apart = replay_all(log, pieces, cut=Cut(), exact=True, batch_bytes_max=ROOM)
    whole = replay_all(log, [], cut=Cut(), exact=True, batch_bytes_max=ROOM)

    assert one_by_one(joined([as_batches(each) for each in apart], rule)) == one_by_one(
        joined([as_batches(each) for each in whole], rule)
    )


@settings(max_examples=80)
@given(data=st.data(), log=logs(), rule=rules, exact=st.booleans())
def test_batches_joined_where_they_were_read_are_those_joined_from_a_copy(
    data: st.DataObject, log: Log, rule: JoinRule, exact: bool
) -> None:
    pieces = sorted(data.draw(st.sets(st.integers(1, len(log.entries)), max_size=3)))
    made = {
        copied: stamped_by_one(
            joined(
                [
                    as_batches(each)
                    for each in replay_all(log, pieces, cut=Cut(), exact=exact, batch_bytes_max=ROOM, copied=copied)
                ],
                rule,
            )
        )
        for copied in (True, False)
    }

    assert made[False] == made[True]


def test_batches_that_are_joined_are_not_copied_before() -> None:
    log = np.frombuffer(b"".join(small(Codec.LZ4)), np.uint8)
    read = replay(log, walk(log), [], cut=Cut(), exact=True, batch_bytes_max=ROOM, copied=False)

    assert np.shares_memory(read.data, log)
    # They may be those of an object in memory that others read as well.
    assert not np.shares_memory(as_batches(read).copy().data, log)
    assert not any(np.shares_memory(each.data, log) for each in joined([as_batches(read)]))


@settings(max_examples=60)
@given(data=st.data(), rule=rules, codec=st.sampled_from(list(Codec)))
def test_whoever_resumes_after_any_batch_sends_the_batches_that_would_have_come(
    data: st.DataObject, rule: JoinRule, codec: Codec
) -> None:
    everything = of(*small(codec))
    sent = one_by_one(joined([everything], rule))
    reached = data.draw(st.integers(0, len(sent) - 1))
    rest = np.flatnonzero(everything.source_offset >= sent[reached][1])

    assert one_by_one(joined([everything.take(slice(int(rest[0]), None))], rule)) == sent[reached:]


@pytest.mark.parametrize("codec", list(Codec))
def test_many_small_batches_become_one_with_their_codec_and_highest_timestamp(codec: Codec) -> None:
    (made,) = joined([of(*small(codec))])

    assert len(made) == 1
    assert made.headers.codec.tolist() == [codec]
    assert made.headers["count"].tolist() == [100]
    assert made.headers["last_offset_delta"].tolist() == [99]
    assert made.headers["max_timestamp"].tolist() == [19_004]
    walk(made.data, whole=True)


def test_batches_are_not_joined_over_a_hole_or_another_codec_or_when_they_are_large() -> None:
    batches = of(
        packed(many(2, first=0)),
        packed(many(2, first=2)),
        packed(many(2, first=10)),  # after a hole
        packed(many(2, first=12), Codec.LZ4),
        packed(many(2, first=14), Codec.LZ4),
        packed(many(2, first=16)),
        packed(many(1, first=18, value=bytes(1 << 17))),  # large
        packed(many(2, first=19)),
    )

    made = one_by_one(joined([batches]))
    assert [offset for _, offset, _ in made] == [0, 10, 12, 16, 18, 19]
    assert [hole for hole, _, _ in made] == [0, 6, 0, 0, 0, 0]


def test_a_batch_without_neighbours_stays_as_it_was_byte_for_byte() -> None:
    lone = packed(many(3), Codec.GZIP, producer_id=7, leader_epoch=3, base_sequence=9)

    assert one_by_one(joined([of(lone)])) == [(0, 0, lone)]


def test_batches_whose_records_are_not_what_their_headers_say_stay_as_they_are() -> None:
    """The broker refuses them and names the record; joined, the others would be refused with them."""
    batches = small(batches=3)
    wrong = bytearray(batches[1])
    wrong[HEADER_BYTES] ^= 0x40  # the first record's length
    batches[1] = reseal(bytes(wrong))

    assert [batch for _, _, batch in one_by_one(joined([of(*batches)]))] == batches


def test_a_group_that_would_be_too_large_for_the_target_stays_as_it_is() -> None:
    """Deltas of times that are far apart need several bytes for each record."""
    batches = [
        packed([Record(offset=60 * i + n, timestamp=i << 50, key=None, value=None) for n in range(60)])
        for i in range(4)
    ]
    stored = sum(map(len, batches))
    room = int(stored / 0.7) + 1

    assert [batch for _, _, batch in one_by_one(joined([of(*batches)], room=room))] == batches
    assert len(one_by_one(joined([of(*batches)], room=2 * stored))) == 1


def test_timestamps_that_are_centuries_apart_survive() -> None:
    times = [1 << 52, -(1 << 52), -1, 0, 253_402_300_799_999]
    records = [Record(offset=i, timestamp=time, key=None, value=b"") for i, time in enumerate(times)]

    (made,) = joined([of(*(packed([record]) for record in records))])
    assert len(made) == 1
    assert decode(made.data).column("timestamp_ms").to_pylist() == times


def test_large_batches_load_no_compiled_code() -> None:
    program = """
import sys
import numpy as np
from maxbrod.batch.coalesce import Batches, Coalescer, JoinRule
from maxbrod.batch.headers import walk
from maxbrod.model import Codec

data = np.frombuffer(bytes.fromhex(sys.argv[1]), np.uint8)
headers = walk(data)
zeros = np.zeros(len(headers), np.int64)
coalescer = Coalescer(JoinRule(target_bytes=1 << 20, small_bytes={Codec.NONE: 50}), batch_bytes_max=1 << 20)
batches = Batches(data=data, headers=headers, source_offset=headers["base_offset"], hole=zeros)
assert sum(map(len, [*coalescer.add(batches), *coalescer.finish()])) == len(headers)
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, b"".join(small()).hex()], check=True)

"""What an archive should never hold, handed to a replay: it is named, and nothing of it gets through."""

from __future__ import annotations

import numpy as np
import pytest

from maxbrod.batch.cuts import Cut
from maxbrod.batch.headers import walk
from maxbrod.batch.replay import Replayed, replay
from maxbrod.errors import CorruptDataError, MaxbrodError, UnsupportedFormatError
from maxbrod.model import Codec
from support.old_messages import message, wrapper
from support.plain_batches import Record, write_batch
from support.replay_cases import packed

SOUND = packed([Record(offset=0, timestamp=0, key=None, value=b"v")])
TWO = [Record(offset=5, timestamp=0, key=b"k", value=b"v"), Record(offset=7, timestamp=9, key=b"k", value=b"v")]


def run(data: bytes, *, cut: Cut | None = None, exact: bool = True, position: int = 0) -> Replayed:
    cut = cut or Cut()
    return replay(data, walk(data), [], cut=cut, exact=exact, batch_bytes_max=1 << 20, position=position)


def caught_at(error: MaxbrodError) -> tuple[int | None, int | None]:
    return error.offset, error.position


@pytest.mark.parametrize("cut", [Cut(), Cut(since_ms=1), Cut(until_ms=1), Cut(first_offset=6)])
def test_records_that_do_not_add_up_are_named_with_their_batch(cut: Cut) -> None:
    damaged = write_batch(TWO, body=b"\0" * 40)

    with pytest.raises(CorruptDataError) as caught:
        run(SOUND + damaged, cut=cut)
    assert caught_at(caught.value) == (5, len(SOUND))


@pytest.mark.parametrize("cut", [Cut(since_ms=0), Cut(until_ms=1)])
def test_a_batch_that_may_stay_but_cannot_be_read_is_never_passed_on_under_a_limit_of_time(cut: Cut) -> None:
    damaged = write_batch([TWO[0]], max_timestamp=5, body=b"\0" * 40)

    with pytest.raises(CorruptDataError) as caught:
        run(SOUND + damaged, cut=cut)
    assert caught_at(caught.value) == (5, len(SOUND))


def test_records_that_cannot_be_unpacked_are_named_with_their_batch() -> None:
    damaged = write_batch(TWO, attributes=int(Codec.ZSTD), body=b"no zstd at all")

    with pytest.raises(CorruptDataError) as caught:
        run(SOUND + damaged)
    assert caught_at(caught.value) == (5, len(SOUND))


@pytest.mark.parametrize("exact", [True, False])
def test_offsets_that_come_twice_are_refused(exact: bool) -> None:
    with pytest.raises(CorruptDataError) as caught:
        run(SOUND + SOUND, exact=exact)
    assert caught_at(caught.value) == (0, len(SOUND))
    with pytest.raises(CorruptDataError) as caught:
        run(SOUND, exact=exact, position=1)
    assert caught.value.offset == 0


@pytest.mark.parametrize("exact", [True, False])
def test_old_messages_that_reach_back_into_what_stands_before_are_refused(exact: bool) -> None:
    inside = [Record(offset=offset, timestamp=0, key=None, value=b"v") for offset in (5, 6, 8)]

    with pytest.raises(CorruptDataError) as caught:
        run(packed(TWO) + wrapper(1, Codec.GZIP, inside), exact=exact)
    assert caught.value.offset == 5


def test_batches_out_of_order_are_refused() -> None:
    with pytest.raises(CorruptDataError, match="follows one that ends at offset 7"):
        run(packed(TWO) + SOUND)


@pytest.mark.parametrize(
    "entry", [packed([TWO[0]], attributes=6), message(1, TWO[0], attributes=6)], ids=["batch", "message"]
)
def test_a_codec_that_nobody_has_defined_is_never_passed_on(entry: bytes) -> None:
    with pytest.raises(UnsupportedFormatError, match="codec 6") as caught:
        run(SOUND + entry)
    assert caught_at(caught.value) == (5, len(SOUND))


def test_the_last_offset_of_all_does_not_overflow() -> None:
    last = (1 << 63) - 1
    result = run(packed([Record(offset=last, timestamp=0, key=None, value=None)]))

    assert (result.hole.tolist(), result.position) == ([last], 1 << 63)


def test_errors_name_the_object() -> None:
    with pytest.raises(CorruptDataError) as caught:
        replay(SOUND * 2, walk(SOUND * 2), [], cut=Cut(), exact=True, batch_bytes_max=99, object_name="a.log")
    assert caught.value.object_name == "a.log"


def test_damage_that_a_checksum_would_show_is_still_shown_after_a_replay() -> None:
    data = np.frombuffer(SOUND, np.uint8).copy()
    headers = walk(data)
    data[-1] ^= 1
    result = replay(data, headers, [], cut=Cut(), exact=True, batch_bytes_max=1 << 20)

    with pytest.raises(CorruptDataError, match="checksum"):
        walk(result.data)

from __future__ import annotations

import struct

import numpy as np
import pytest

from maxbrod.batch.compression import compress
from maxbrod.batch.headers import walk
from maxbrod.batch.transactions import (
    Transactions,
    committed_batches,
    committed_records,
    from_fetch,
    from_markers,
)
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.model import AbortedTransaction, Codec
from support.old_messages import message
from support.plain_batches import Record, write_batch
from support.transactions import ABORT, COMMIT, data, marker

LOG = b"".join(
    [
        data(0, 1, records=2),
        data(2, 2),
        data(3, -1, transactional=False),
        marker(4, 1, ABORT),
        data(5, 1),
        marker(6, 2, COMMIT),
        marker(7, 1, COMMIT),
        data(8, 3),
    ]
)
FIRST_OF_ONE = AbortedTransaction(producer_id=1, first_offset=0, last_offset=4)


def test_markers_tell_what_was_aborted_and_what_is_open() -> None:
    assert from_markers(LOG, walk(LOG)) == Transactions(aborted=(FIRST_OF_ONE,), undecided=((3, 8),))


def test_aborted_and_control_batches_are_not_committed() -> None:
    committed = committed_batches(walk(LOG), [FIRST_OF_ONE])

    assert committed.tolist() == [False, True, True, False, True, False, False, True]


def test_a_producers_next_transaction_is_not_taken_for_its_aborted_one() -> None:
    """Offset 5 is of the same producer as the aborted offsets 0 and 1, and after their marker."""
    assert committed_batches(walk(LOG), [FIRST_OF_ONE])[4]


def test_every_record_of_an_aborted_batch_is_left_out() -> None:
    committed = committed_records(walk(LOG), [FIRST_OF_ONE])

    assert committed.tolist() == [False, False, True, True, False, True, False, False, True]


def test_plain_records_amid_an_aborted_transaction_of_the_same_producer_stay() -> None:
    log = data(0, 1) + data(1, 1, transactional=False) + marker(2, 1, ABORT)
    aborted = [AbortedTransaction(producer_id=1, first_offset=0, last_offset=2)]

    assert committed_batches(walk(log), aborted).tolist() == [False, True, False]


def test_a_transaction_that_began_before_the_range_counts_from_the_ranges_start() -> None:
    log = data(10, 9, transactional=False) + data(11, 1) + marker(12, 1, ABORT) + marker(13, 2, ABORT)

    assert from_markers(log, walk(log)).aborted == (
        AbortedTransaction(producer_id=1, first_offset=11, last_offset=12),
        AbortedTransaction(producer_id=2, first_offset=10, last_offset=13),
    )


def test_a_fetch_answers_list_gets_its_ends_from_the_markers() -> None:
    log = data(0, 1) + marker(1, 1, ABORT) + data(2, 1) + data(3, 2) + marker(4, 1, ABORT) + data(5, 2)
    found = from_fetch(log, walk(log), [(1, 2), (1, 0), (2, 3)])

    assert [(each.producer_id, each.first_offset, each.last_offset) for each in found] == [
        (1, 0, 1),
        (1, 2, 4),
        (2, 3, 5),
    ]


def test_many_aborted_transactions_of_one_producer_are_told_apart() -> None:
    log = b"".join(data(2 * i, 1) + marker(2 * i + 1, 1, ABORT if i % 3 else COMMIT) for i in range(50))
    headers = walk(log)
    committed = committed_batches(headers, from_markers(log, headers).aborted)

    assert headers["base_offset"][committed].tolist() == [2 * i for i in range(0, 50, 3)]


def test_a_span_holds_its_first_and_last_offset_and_no_more() -> None:
    log = b"".join(data(offset, 1) for offset in range(5))
    aborted = [AbortedTransaction(producer_id=1, first_offset=1, last_offset=3)]

    assert committed_batches(walk(log), aborted).tolist() == [True, False, False, False, True]


def test_aborted_transactions_may_be_named_in_any_order() -> None:
    log = b"".join(data(2 * i, 1) + marker(2 * i + 1, 1, i % 2) for i in range(6))
    headers = walk(log)
    aborted = from_markers(log, headers).aborted

    assert len(aborted) == 3
    assert (
        committed_batches(headers, aborted[::-1]).tolist()
        == committed_batches(headers, aborted).tolist()
        == [offset in {2, 6, 10} for offset in range(12)]
    )


def test_an_open_end_reaches_to_the_last_record_of_the_range() -> None:
    log = data(0, 1) + data(1, 1, records=5)

    assert [each.last_offset for each in from_fetch(log, walk(log), [(1, 0)])] == [5]


def test_a_fetch_answers_transaction_may_have_begun_before_the_range() -> None:
    log = data(10, 1) + marker(11, 1, ABORT) + data(12, 1) + marker(13, 1, COMMIT)
    headers = walk(log)
    aborted = from_fetch(log, headers, [(1, 3)])

    assert aborted == (AbortedTransaction(producer_id=1, first_offset=3, last_offset=11),)
    assert committed_batches(headers, aborted).tolist() == [False, False, True, False]


def test_an_emptied_control_batch_is_no_marker_and_no_error() -> None:
    log = data(0, 1) + write_batch([], base_offset=1, attributes=0x30, producer_id=1) + marker(2, 1, ABORT)

    assert from_markers(log, walk(log)).aborted == (AbortedTransaction(producer_id=1, first_offset=0, last_offset=2),)


def test_a_marker_with_long_numbers_before_its_key_is_read_too() -> None:
    """A control record's deltas and length may each take more bytes than one."""
    record = Record(offset=900, timestamp=1 << 40, key=struct.pack(">hh", 0, ABORT), value=bytes(200))
    batch = write_batch(
        [record], base_offset=200, base_timestamp=0, last_offset_delta=700, attributes=0x30, producer_id=1
    )
    log = data(0, 1) + batch

    assert len(from_markers(log, walk(log)).aborted) == 1


@pytest.mark.parametrize("kept", range(9))
def test_a_marker_cut_before_the_end_of_its_key_is_corrupt(kept: int) -> None:
    record = Record(offset=0, timestamp=0, key=struct.pack(">hh", 0, ABORT), value=b"")
    body = write_batch([record])[61:]
    log = data(0, 1) + write_batch([record], attributes=0x30, producer_id=1, body=body[:kept])

    with pytest.raises(CorruptDataError, match="cut short") as caught:
        from_markers(log, walk(log))
    assert (caught.value.offset, caught.value.position) == (0, len(data(0, 1)))


def test_a_compressed_marker_is_no_decompression_bomb() -> None:
    record = Record(offset=1, timestamp=0, key=struct.pack(">hh", 0, ABORT), value=b"")
    body = compress(Codec.ZSTD, np.zeros(1 << 20, np.uint8))
    log = write_batch([record], attributes=0x34, producer_id=1, body=body)

    with pytest.raises(CorruptDataError, match="unpack to more than 65536 bytes"):
        from_markers(log, walk(log))


def test_old_messages_have_no_transactions_to_filter_by() -> None:
    log = message(1, Record(offset=0, timestamp=0, key=None, value=b"v"))

    assert committed_batches(walk(log), []).tolist() == [True]
    with pytest.raises(UnsupportedFormatError, match="have no transactions"):
        committed_records(walk(log), [])


def test_a_compressed_marker_is_read_too() -> None:
    record = Record(offset=1, timestamp=0, key=struct.pack(">hh", 0, ABORT), value=b"")
    plain = write_batch([record])
    body = compress(Codec.LZ4, np.frombuffer(plain[61:], np.uint8))
    log = data(0, 1) + write_batch([record], attributes=0x33, producer_id=1, body=body)

    assert len(from_markers(log, walk(log)).aborted) == 1


def test_control_records_that_are_no_markers_end_no_transaction() -> None:
    log = data(0, 1) + marker(1, 1, 2)

    assert from_markers(log, walk(log)) == Transactions(aborted=(), undecided=((1, 0),))


def test_an_unknown_version_of_a_marker_is_refused() -> None:
    log = data(0, 1) + marker(1, 1, ABORT, version=1)

    with pytest.raises(UnsupportedFormatError, match="version 1") as caught:
        from_markers(log, walk(log))
    assert caught.value.offset == 1


def test_a_marker_without_a_key_is_corrupt() -> None:
    record = Record(offset=0, timestamp=0, key=None, value=None)
    log = write_batch([record], attributes=0x30, producer_id=1, body=b"\x0c\0\0\0\1\1\0")

    with pytest.raises(CorruptDataError, match="cut short"):
        from_markers(log, walk(log))


def test_an_empty_range_has_no_transactions() -> None:
    assert from_markers(b"", walk(b"")) == Transactions(aborted=(), undecided=())
    assert from_fetch(b"", walk(b""), []) == ()
    assert committed_batches(walk(b""), []).tolist() == []

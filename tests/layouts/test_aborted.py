from __future__ import annotations

from maxbrod.batch.headers import walk
from maxbrod.batch.transactions import committed_batches
from maxbrod.layouts.kafka.format import SegmentLimits, Slice
from maxbrod.layouts.kafka.slices import cut_slice
from support.native_logs import ABORT, COMMIT, NAME, archive, data_batch, logs, marker, new_storage


def sent(offset: int, producer_id: int) -> bytes:
    return data_batch(offset, attributes=0x10, producer_id=producer_id, producer_epoch=0, base_sequence=0)


def listed(row: Slice) -> list[tuple[int, int, int]]:
    return [(each.producer_id, each.first_offset, each.last_offset) for each in row.aborted]


def test_a_row_names_every_aborted_transaction_that_touches_it() -> None:
    """Began before, within, ended after: of producers 1, 2 and 3."""
    chunks = [sent(10, 1) + sent(11, 2), marker(12, 1, ABORT) + sent(13, 3), marker(14, 2, ABORT) + sent(15, 3)]
    answers = [[(1, 5), (2, 11)], [(1, 5), (2, 11), (3, 13)], [(2, 11), (3, 13)]]
    (row,) = archive(new_storage(), chunks, aborted=answers)

    assert listed(row) == [(1, 5, 12), (2, 11, 14), (3, 13, 15)]


def test_a_transaction_is_named_by_each_slice_that_it_touches_and_by_no_other() -> None:
    log = [sent(0, 1), sent(1, 1), marker(2, 1, ABORT), sent(3, 1), marker(4, 1, COMMIT)]
    rows = archive(new_storage(), [b"".join(log)], aborted=[[(1, 0)]], limits=SegmentLimits(records_max=1))

    assert [listed(row) for row in rows] == [[(1, 0, 0)], [(1, 0, 1)], [(1, 0, 2)], [], []]


def test_a_producers_later_marker_does_not_end_an_earlier_transaction() -> None:
    """The marker of the first is the last of its chunk; the second transaction's comes in the next one."""
    chunks = [sent(0, 1) + marker(1, 1, ABORT), sent(2, 1) + marker(3, 1, ABORT) + sent(4, 1) + marker(5, 1, COMMIT)]
    storage = new_storage()
    (row,) = archive(storage, chunks, aborted=[[(1, 0)], [(1, 2)]])

    assert listed(row) == [(1, 0, 1), (1, 2, 3)]
    headers = walk(logs(storage, (row,)))
    assert committed_batches(headers, row.aborted).tolist() == [False, False, False, False, True, False]


def test_a_transaction_that_begins_after_a_slice_is_not_in_its_row() -> None:
    rows = archive(
        new_storage(),
        [sent(0, 1) + marker(1, 1, COMMIT) + sent(5000, 1) + marker(5001, 1, ABORT)],
        aborted=[[(1, 5000)]],
    )
    assert [listed(row) for row in rows] == [[], [(1, 5000, 5001)]]


def test_what_is_cut_away_takes_its_transactions_with_it() -> None:
    log = sent(0, 1) + sent(1, 2) + marker(2, 1, ABORT) + sent(3, 2) + marker(4, 2, ABORT)
    storage = new_storage()
    (row,) = archive(storage, [log], aborted=[[(1, 0), (2, 1)]])

    cut = cut_slice(storage, row, 2, NAME)
    assert cut is not None
    assert listed(cut) == [(1, 0, 1), (2, 1, 1)]
    cut = cut_slice(storage, row, 1, NAME)
    assert cut is not None
    assert listed(cut) == [(1, 0, 0)]


def test_two_transactions_of_one_answer_get_each_its_own_end() -> None:
    log = sent(0, 1) + marker(1, 1, ABORT) + sent(2, 1) + marker(3, 1, ABORT)
    (row,) = archive(new_storage(), [log], aborted=[[(1, 2), (1, 0)]])

    assert listed(row) == [(1, 0, 1), (1, 2, 3)]


def test_a_transaction_whose_marker_is_never_seen_claims_nothing_that_its_producer_committed_later() -> None:
    """The marker at 1 is damaged or compacted away; the next answer does not name the transaction any more."""
    chunks = [sent(0, 1), sent(2, 1) + marker(3, 1, COMMIT), sent(4, 1) + marker(5, 1, ABORT)]
    storage = new_storage()
    (row,) = archive(storage, chunks, aborted=[[(1, 0)], [], [(1, 4)]])

    assert listed(row) == [(1, 0, 1), (1, 4, 5)]
    headers = walk(logs(storage, (row,)))
    assert committed_batches(headers, row.aborted).tolist() == [False, True, False, False, False]


def test_a_marker_that_is_written_late_still_ends_its_transaction_where_it_stands() -> None:
    """The first chunk waits until there is enough to try compression on, and the second answer comes before that."""
    chunks = [sent(0, 1) + marker(1, 1, ABORT) + sent(2, 1) + marker(3, 1, COMMIT), sent(9, 2) + marker(10, 2, COMMIT)]
    (row,) = archive(new_storage(), chunks, aborted=[[(1, 0)], []])
    assert listed(row) == [(1, 0, 1)]

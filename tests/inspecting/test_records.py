"""Single records out of an archive: by offset, by time, and never those that no consumer sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.errors import CorruptDataError
from maxbrod.inspect.records import PassedGap, find_offset, read_page
from maxbrod.model import AbortedTransaction, Codec, PartitionId
from support.native_archives import TOPIC_ID, file_of, in_memory
from support.native_logs import ABORT, data_batch, marker, pack
from support.plain_batches import Record

if TYPE_CHECKING:
    from support.native_archives import Making

PLACE = PartitionId(topic_id=TOPIC_ID, partition=0)
MUCH = 1 << 30


def offsets(making: Making, first: int, count: int = 1000, bytes_max: int = MUCH) -> tuple[list[int], int | None]:
    page = read_page(open_archive(making.url), PLACE, first, count=count, bytes_max=bytes_max)
    return page.records["offset"].to_pylist(), page.next_offset


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_page_begins_inside_a_batch_and_goes_on_over_segments(codec: Codec) -> None:
    with in_memory() as making:
        making.run({0: [data_batch(0, 10, codec=codec), data_batch(10, 10, codec=codec)]})
        making.run({0: [data_batch(20, 10, codec=codec)]})
        assert offsets(making, 7, 5) == ([7, 8, 9, 10, 11], 12)
        assert offsets(making, 18, 4) == ([18, 19, 20, 21], 22)
        assert offsets(making, 25) == ([25, 26, 27, 28, 29], None)
        assert offsets(making, 30) == ([], None)


def test_gaps_on_the_way_are_told() -> None:
    with in_memory() as making:
        making.run({0: [data_batch(0, 3)]})
        making.run({0: [data_batch(9, 3)]}, gaps={0: (3, 9)})
        page = read_page(open_archive(making.url), PLACE, 2, count=2, bytes_max=MUCH)
        assert page.records["offset"].to_pylist() == [2, 9]
        assert page.gaps == (PassedGap(first_offset=3, end_offset=9, reason="compacted"),)


def test_a_page_ends_where_it_is_large_enough() -> None:
    with in_memory() as making:
        making.run({0: [data_batch(number, 1, value=b"x" * 10_000) for number in range(10)]})
        found, following = offsets(making, 0, bytes_max=25_000)
        assert found == list(range(len(found)))
        assert following == len(found)
        assert len(found) <= 10


def test_aborted_records_and_markers_are_passed_over() -> None:
    aborted = data_batch(2, 2, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0)
    with in_memory() as making:
        making.run(
            {0: [data_batch(0, 2), aborted, marker(4, 9, ABORT), data_batch(5, 2)]},
            aborted=(AbortedTransaction(producer_id=9, first_offset=2, last_offset=4),),
        )
        assert offsets(making, 0) == ([0, 1, 5, 6], None)


def test_a_time_leads_to_the_first_record_that_is_not_older() -> None:
    def batch(first: int, *times: int) -> bytes:
        return pack([Record(offset=first + n, timestamp=at, key=None, value=b"v") for n, at in enumerate(times)])

    with in_memory() as making:
        making.run({0: [batch(0, 100, 300), batch(2, 200, 250)]})
        making.run({0: [batch(4, 400)]})
        archive = open_archive(making.url)
        found = {at: find_offset(archive, PLACE, at) for at in (0, 100, 101, 300, 301, 400, 401)}
        # Times need not rise: the first record from there on is what a consumer would get.
        assert found == {0: 0, 100: 0, 101: 1, 300: 1, 301: 4, 400: 4, 401: None}


def test_a_lost_object_is_named() -> None:
    with in_memory() as making:
        rows = making.run({0: [data_batch(0, 3)]})
        file_of(making, rows[0].path).unlink()  # type: ignore[union-attr] # a segment
        with pytest.raises(CorruptDataError, match="offsets 0 to 3 cannot be read: the object is not there"):
            offsets(making, 0)

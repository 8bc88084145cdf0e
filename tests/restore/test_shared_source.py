"""What is read for other partitions: the records of the plan, in its order, however the archive holds them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pytest

from maxbrod.batch import rewrite
from maxbrod.batch.encode import encode
from maxbrod.config import StorageConfig
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.kafka.frames import SliceDigest
from maxbrod.model import Codec
from maxbrod.restore.items import SharedSource
from maxbrod.restore.repartition.extents import SourceExtent
from maxbrod.restore.repartition.task import read_in_order
from maxbrod.storage.stores import open_storage
from support.shared_logs import piece

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from maxbrod.storage.interface import Storage

END = 40
BLOCKS = [
    SourceExtent(partition=partition, first=first, end=end)
    for partition, first, end in ((0, 0, 7), (1, 3, 10), (0, 7, 30), (1, 10, 11), (0, 30, END), (1, 11, END))
]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path), StorageConfig())


def put_slices(storage: Storage, partition: int, edges: Sequence[int], batch: int) -> Iterator[Slice]:
    """Offsets from the first edge to the last, in slices between the edges, with holes at multiples of 9."""
    for number, (first, end) in enumerate(pairwise(edges)):
        rows = [(offset, b"k") for offset in range(first, end) if offset % 9]
        parts = [piece(partition, rows[start : start + batch]).records for start in range(0, len(rows), batch)]
        log = np.concatenate([encode(part, codec=Codec.LZ4) for part in parts])
        path, digest = f"segments/{partition}/{len(edges)}-{batch}-{number}.log", SliceDigest()
        storage.put(path, log.tobytes())
        digest.add(log)
        yield Slice(
            path=path,
            position=0,
            bytes=log.size,
            raw_bytes=log.size,
            codec="lz4",
            base_offset=rows[0][0],
            end_offset=end,
            records=len(rows),
            min_timestamp=None,
            max_timestamp=None,
            first_leader_epoch=-1,
            last_leader_epoch=-1,
            digest=str(digest),
        )


def read(storage: Storage, slices: dict[int, Iterable[Slice]]) -> list[tuple[int, int]]:
    sources = [
        SharedSource(partition=each, first_offset=3 * each, end_offset=END, slices=tuple(mine))
        for each, mine in slices.items()
    ]
    found = read_in_order(storage, sources, BLOCKS)
    return [(each.partition, offset) for each in found for offset in each.records.column("offset").to_pylist()]


@pytest.mark.parametrize("edges", [(0, END), (0, 7, 30, END), (0, 5, 6, 20, 38, 50)])
@pytest.mark.parametrize("batch", [1, 4, 100])
@pytest.mark.parametrize("portion_bytes", [1, 1 << 20])
def test_the_order_is_the_plans_however_rows_and_batches_are_cut(
    storage: Storage, edges: Sequence[int], batch: int, portion_bytes: int
) -> None:
    with patch.object(rewrite, "PORTION_BYTES", portion_bytes):
        found = read(storage, {each: put_slices(storage, each, edges, batch) for each in (0, 1)})
    wanted = [
        (block.partition, offset)
        for block in BLOCKS
        for offset in range(block.first, block.end)
        if offset % 9 and offset >= 3 * block.partition
    ]
    assert found == wanted


def test_a_slice_is_opened_only_when_its_block_comes(storage: Storage) -> None:
    opened: list[str] = []
    get_range = type(storage).get_range

    def noting(self: Storage, path: str, start: int, length: int) -> object:
        opened.append(path)
        return get_range(self, path, start, length)

    slices = {each: list(put_slices(storage, each, (0, 7, 30, END), 4)) for each in (0, 1)}
    with patch.object(type(storage), "get_range", noting):
        sources = [
            SharedSource(partition=each, first_offset=0, end_offset=END, slices=tuple(mine))
            for each, mine in slices.items()
        ]
        for each in read_in_order(storage, sources, BLOCKS[:1]):
            assert each.partition == 0
    assert opened == [slices[0][0].path]


def test_offsets_that_the_archive_holds_twice_are_refused(storage: Storage) -> None:
    twice = [*put_slices(storage, 0, (0, 20), 4), *put_slices(storage, 0, (10, 25, 30), 4)]
    with pytest.raises(CorruptDataError, match="follows one at offset 19"):
        read(storage, {0: twice, 1: ()})

"""Rows become gaps and rows again, whatever else they stand beside. Without a catalog."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.archive.pruned import is_pruned, prune_rows, restore_rows
from maxbrod.catalog.commits import absent_rows
from maxbrod.catalog.replaced import retire
from maxbrod.catalog.rows import decode_rows, encode_rows
from maxbrod.catalog.schema import SCHEMA, SORT_ORDER
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.catalog.validity import check_rows
from maxbrod.model import GapReason, PartitionId
from support.catalog_rows import TOPIC_ID, gap, segment

NONE = SCHEMA.empty_table()


def after(rows: pa.Table, added: pa.Table, removed: pa.Table) -> pa.Table:
    return pa.concat_tables([absent_rows(rows, removed), added]).sort_by(SORT_ORDER)


def tiled(widths: list[tuple[int, int, bool]]) -> pa.Table:
    """Rows of two partitions, one after the other; some are gaps of another reason."""
    rows, reached = [], [0, 0]
    for partition, width, is_gap in widths:
        base = reached[partition]
        reached[partition] = base + width
        row = gap if is_gap else segment
        rows.append(row(base, base + width, partition=partition))
    return encode_rows(rows).sort_by(SORT_ORDER)


WIDTHS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 5), st.booleans()), min_size=1, max_size=20)


@given(WIDTHS, st.lists(st.sets(st.integers(0, 19)), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_prunes_tile_and_are_undone_in_any_order(
    widths: list[tuple[int, int, bool]], chosen: list[set[int]], random: object
) -> None:
    rows = before = tiled(widths)
    taken: list[pa.Table] = []
    for number, places in enumerate(chosen):
        data = before.filter(pa.array([each["kind"] == "data" for each in before.to_pylist()], pa.bool_()))
        going = data.take(pa.array([place for place in sorted(places) if place < data.num_rows], pa.int64()))
        for earlier in taken:
            going = absent_rows(going, earlier)
        swap = prune_rows(going, rows.filter(is_pruned(rows)), NONE, run_id=f"prune-{number}")
        check_rows(swap.added)
        rows = after(rows, swap.added, swap.removed)
        assert find_tiling_faults(rows).complete
        taken.append(going)
    random.shuffle(taken)  # type: ignore[attr-defined]
    for going in taken:
        swap = restore_rows(going, rows.filter(is_pruned(rows)), NONE, run_id="undo")
        assert swap.left.num_rows == 0
        rows = after(rows, swap.added, swap.removed)
        assert find_tiling_faults(rows).complete
    assert decode_rows(rows) == decode_rows(before)


def test_gaps_are_not_joined_across_borders() -> None:
    rows = encode_rows([segment(0, 5), segment(5, 9), segment(9, 12), segment(12, 20)])
    replaced = retire(encode_rows([segment(5, 20, path="packs/old.log")]), {})
    border = {PartitionId(topic_id=TOPIC_ID, partition=0): {9}}
    made = decode_rows(prune_rows(rows, NONE, replaced, run_id="p", borders=border).added.sort_by(SORT_ORDER))
    assert [(row.base_offset, row.end_offset) for row in made] == [(0, 5), (5, 9), (9, 20)]  # type: ignore[union-attr]


def test_a_row_whose_offsets_were_taken_since_stays_away() -> None:
    rows = encode_rows([segment(0, 5), segment(5, 9)])
    now = encode_rows([gap(0, 3, reason=GapReason.PRUNED), segment(3, 5), gap(5, 9, reason=GapReason.PRUNED)])
    swap = restore_rows(rows, now.filter(is_pruned(now)), NONE, run_id="undo")
    assert [each["base_offset"] for each in swap.left.to_pylist()] == [0]
    assert [each["base_offset"] for each in swap.added.to_pylist()] == [5]

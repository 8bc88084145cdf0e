"""As of a run, the catalog has the rows that the run left, whatever has taken their place since."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.catalog.replaced import after_replacing, as_it_was, count_revisions, retire
from maxbrod.catalog.rows import Gap, Segment, decode_rows, encode_rows
from maxbrod.catalog.schema import SORT_ORDER
from maxbrod.errors import UnsupportedFormatError
from maxbrod.model import GapReason, PartitionId
from support.catalog_rows import TOPIC_ID, gap, run, segment

if TYPE_CHECKING:
    from support.catalog_places import Archive

PLACE = PartitionId(topic_id=TOPIC_ID, partition=0)
Tiles = list[Segment | Gap]


@dataclass
class History:
    """A partition as backups see it: appended to, truncated, mended, read afresh. It remembers what each run left."""

    live: Tiles = field(default_factory=list)
    replaced: list[pa.Table] = field(default_factory=list)
    revisions: dict[PartitionId, int] = field(default_factory=dict)
    left: list[tuple[int, dict[PartitionId, int], Tiles]] = field(default_factory=list)
    number: int = 0

    @property
    def end(self) -> int:
        return self.live[-1].end_offset if self.live else 0

    def row(self, base: int, end: int, *, data: bool) -> Segment | Gap:
        self.number += 1
        return segment(base, end, path=f"o/{self.number}") if data else gap(base, end, reason=GapReason.CORRUPT)

    def retire(self, gone: Tiles) -> None:
        self.replaced.append(retire(encode_rows(gone), self.revisions))
        self.revisions = after_replacing(self.revisions, gone)

    def append(self, length: int, *, data: bool) -> None:
        self.live = [*self.live, self.row(self.end, self.end + length, data=data)]

    def truncate(self, offset: int) -> None:
        gone = [each for each in self.live if each.end_offset > offset]
        if not gone:
            return
        cut = [self.row(each.base_offset, offset, data=True) for each in gone if each.base_offset < offset]
        self.retire(gone)
        self.live = [*(each for each in self.live if each.end_offset <= offset), *cut]

    def mend(self, which: int) -> None:
        gaps = [each for each in self.live if isinstance(each, Gap)]
        if not gaps:
            return
        old = gaps[which % len(gaps)]
        middle = (old.base_offset + old.end_offset) // 2
        edges = [(old.base_offset, middle), (middle, old.end_offset)]
        if middle == old.base_offset:
            edges = edges[1:]
        new = [self.row(first, end, data=number == 0) for number, (first, end) in enumerate(edges)]
        self.retire([old])
        at = self.live.index(old)
        self.live = [*self.live[:at], *new, *self.live[at + 1 :]]

    def renew(self, offset: int) -> None:
        """A new generation of everything that ends before an offset."""
        gone = [each for each in self.live if each.end_offset <= offset]
        if not gone:
            return
        first, end = gone[0].base_offset, gone[-1].end_offset
        middle = (first + end) // 2
        edges = [each for each in ((first, middle), (middle, end)) if each[0] < each[1]]
        self.retire(gone)
        self.live = [*(self.row(*each, data=True) for each in edges), *self.live[len(gone) :]]

    def leave(self) -> None:
        self.left.append((self.end, dict(self.revisions), list(self.live)))


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("truncate"), st.integers(0, 40)),
        st.tuples(st.just("mend"), st.integers(0, 9)),
        st.tuples(st.just("renew"), st.integers(0, 60)),
        st.tuples(st.just("leave")),
    ),
    max_size=25,
)


def played(steps: list[tuple[Any, ...]]) -> History:
    history = History()
    for name, *values in steps:
        if name == "append":
            history.append(values[0], data=values[1])
        else:
            getattr(history, name)(*values)
    history.leave()
    return history


@given(_steps)
def test_what_each_run_left_is_found_again_whatever_came_later(steps: list[tuple[Any, ...]]) -> None:
    history = played(steps)
    replaced = pa.concat_tables([encode_rows(()), *history.replaced])
    for end, revisions, tiles in history.left:
        rows = as_it_was(encode_rows(history.live), replaced, revisions).sort_by(SORT_ORDER)
        found = [row for row in decode_rows(rows) if isinstance(row, Segment | Gap) and row.base_offset < end]
        assert found == tiles


@given(_steps)
def test_revisions_are_counted_from_the_rows_alone(steps: list[tuple[Any, ...]]) -> None:
    history = played(steps)
    assert count_revisions(pa.concat_tables([encode_rows(()), *history.replaced])) == history.revisions


def test_a_catalog_has_replaced_rows_only_for_who_asks_for_them(archive: Archive) -> None:
    catalog = archive.create()
    old = [segment(0, 10), segment(10, 20, path="lost"), gap(20, 30)]
    other = segment(0, 50, partition=1)
    catalog.commit([*old, other, run("run-1")])
    then = catalog.revisions()
    new = [segment(10, 15, path="cut"), segment(15, 90, path="new")]
    catalog.commit(new, retired=old[1:])
    assert catalog.revisions() == {PLACE: 1}
    assert decode_rows(catalog.rows()) == [old[0], *new, other]
    assert catalog.positions()[PLACE].end_offset == 90
    assert catalog.gaps({GapReason.RETENTION}) == []
    assert decode_rows(catalog.replaced()) == old[1:]
    ends = {PLACE: 30, replace(PLACE, partition=1): 50}
    for catalog_ in (catalog, archive.open()):
        assert decode_rows(catalog_.rows(as_of=ends, revisions=then)) == [*old, other]
        assert decode_rows(catalog_.rows(partition=1, as_of=ends, revisions=then)) == [other]
        assert decode_rows(catalog_.rows(offsets=(25, 90), as_of=ends, revisions=then)) == [old[2], other]
        # Of the new history nothing, though what it took the place of is not asked for.
        assert decode_rows(catalog_.rows(partition=0, offsets=(60, 90), as_of=ends, revisions=then)) == []
        assert catalog_.rows(columns=["path"], as_of=ends, revisions=then)["path"].to_pylist() == [
            row.path if isinstance(row, Segment) else None for row in [*old, other]
        ]
        assert {"lost", "cut", "new", "snapshots/run-1.json.zst"} <= catalog_.paths()
    assert decode_rows(catalog.rows(as_of={PLACE: 90}, revisions=catalog.revisions())) == [old[0], *new]


def test_a_replaced_row_that_does_not_say_what_it_was_is_refused() -> None:
    rows = retire(encode_rows([segment(0, 10)]), {})
    odd_ones = (
        "",
        "{",
        "{}",
        *(f'{{"kind":{each}}}' for each in ('"run","revision":1', '"gap","revision":0', '"data"')),
    )
    for text in odd_ones:
        odd = rows.set_column(rows.schema.get_field_index("details"), "details", pa.array([text]))
        with pytest.raises(UnsupportedFormatError, match="replaced"):
            as_it_was(encode_rows(()), odd, {})

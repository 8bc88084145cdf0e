from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.inspect.topic import DATA, HOLE, MARKS, Span, coverage_bar, legend
from maxbrod.model import GapReason

COVERS = [DATA, HOLE, *map(str, GapReason)]


def spans(*pieces: tuple[int, str], first: int = 0) -> list[Span]:
    made = []
    for length, cover in pieces:
        made.append(Span(first_offset=first, end_offset=first + length, cover=cover))
        first += length
    return made


def test_every_cover_has_a_letter_and_a_colour_of_its_own_meaning() -> None:
    assert set(MARKS) == set(COVERS)
    letters = [letter for letter, _ in MARKS.values()]
    assert len(set(letters)) == len(letters)


def test_a_cell_shows_what_most_of_its_offsets_are() -> None:
    assert coverage_bar(spans((50, DATA), (50, "retention")), 10).plain == "=====rrrrr"
    assert coverage_bar(spans((999, DATA), (1, "compacted")), 10).plain == "=========="
    assert coverage_bar(spans((3, DATA)), 10).plain == "==="
    assert coverage_bar([], 10).plain == ""


def test_one_offset_that_is_wrong_is_never_hidden() -> None:
    for cover in ("corrupt", "unexplained", HOLE):
        bar = coverage_bar(spans((10**15, DATA), (1, cover), (10**15, "compacted")), 10).plain
        assert MARKS[cover][0] in bar


@given(
    pieces=st.lists(st.tuples(st.integers(1, 2**58), st.sampled_from(COVERS)), min_size=1, max_size=20),
    first=st.integers(0, 2**60),
    width=st.integers(1, 80),
)
def test_bars_are_as_wide_as_asked_for_and_show_only_what_is_there(
    pieces: list[tuple[int, str]], first: int, width: int
) -> None:
    found = spans(*pieces, first=first)
    bar = coverage_bar(found, width).plain
    assert len(bar) == min(width, sum(length for length, _ in pieces))
    assert set(bar) <= {MARKS[cover][0] for _, cover in pieces}
    assert {MARKS[cover][0] for _, cover in pieces} & set("!") <= set(bar)
    assert all(MARKS[cover][0] in legend(found).plain for _, cover in pieces)

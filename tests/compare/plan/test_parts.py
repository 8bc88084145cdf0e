"""Both sides are cut at the same records; from digests of parts follows what is equal, and where to look."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from maxbrod.archive.renames import parse_rename
from maxbrod.batch.digest import Digest, Field
from maxbrod.compare.plan import (
    PART_OFFSETS,
    UNMAPPED,
    ComparedRange,
    CompareRequest,
    Match,
    Pair,
    Side,
    cut_map,
    cut_parts,
    find_suspects,
    judge,
    judge_set,
    parse_fields,
    split_evenly,
    spread,
    translate_all,
)
from maxbrod.compare.report import show_bytes, show_field
from maxbrod.errors import UsageError
from maxbrod.restore.plan.mapping import build_map
from maxbrod.restore.plan.request import RestoreRequest

MAP = build_map([10, 30], [5, 10], [100, 105], base=100)


def extent(first: int, end: int) -> ComparedRange:
    return ComparedRange(topic="t", topic_id="id", partition=0, first=first, end=end)


def pair(source: ComparedRange | None, target: ComparedRange | None, **more: Any) -> Pair:
    values: dict[str, Any] = {"match": Match.EXACT, **more}
    return Pair(source_topic="t", target_topic="t", partition=0, source=source, target=target, **values)


def offsets(made: Pair, side: Side) -> list[tuple[int, int, int]]:
    return [(part.number, part.extent.first, part.extent.end) for part in cut_parts([made]) if part.side is side]


def test_both_sides_are_cut_at_the_same_offsets() -> None:
    made = pair(extent(0, 90), extent(0, 90), splits=(30, 60))
    assert offsets(made, Side.SOURCE) == offsets(made, Side.TARGET) == [(0, 0, 30), (1, 30, 60), (2, 60, 90)]


def test_a_target_that_ends_early_has_fewer_parts_and_none_twice() -> None:
    made = pair(extent(0, 90), extent(0, 45), splits=(30, 60))
    assert offsets(made, Side.TARGET) == [(0, 0, 30), (1, 30, 45)]


def test_a_mapped_target_is_cut_where_the_map_puts_the_same_records() -> None:
    made = pair(extent(10, 40), extent(100, 115), splits=(12, 20, 35), match=Match.MAPPED, offset_map=MAP)
    assert offsets(made, Side.TARGET) == [(0, 100, 102), (1, 102, 105), (2, 105, 110), (3, 110, 115)]


def test_live_topics_are_cut_evenly_and_without_a_small_rest() -> None:
    assert split_evenly(0, PART_OFFSETS) == ()
    assert split_evenly(7, 7 + 3 * PART_OFFSETS) == (7 + PART_OFFSETS, 7 + 2 * PART_OFFSETS)
    assert split_evenly(0, PART_OFFSETS * 5 // 4) == ()


def test_every_part_is_read_by_one_task() -> None:
    made = [pair(extent(0, 100 * number), extent(0, 100), splits=(10, 20, 50)) for number in range(1, 9)]
    parts = cut_parts(made)
    tasks = spread(parts, 2)
    assert sorted((part.pair, part.side, part.number) for task in tasks for part in task) == sorted(
        (part.pair, part.side, part.number) for part in parts
    )
    assert len(tasks) == 6
    assert spread([], 2) == []


def test_a_map_is_cut_to_the_offsets_of_a_part_and_translates_as_the_whole_does() -> None:
    found = np.arange(0, 45)
    wanted = [
        MAP.translate(each).offset if MAP.translate(each).exact and each != 40 else UNMAPPED for each in found.tolist()
    ]
    assert translate_all(MAP, found).tolist() == wanted
    for first, end in ((0, 12), (12, 33), (15, 30), (33, 44)):
        inside = found[(found >= first) & (found < end)]
        assert translate_all(cut_map(MAP, first, end), inside).tolist() == wanted[first:end]


def made_of(*values: int) -> Digest:
    """Each value is a record of its own."""
    whole = Digest()
    for value in values:
        whole = whole.then(Digest(records=1, sequence=(value, value), total=(value, value)))
    return whole


def test_only_parts_that_differ_are_looked_into() -> None:
    made = pair(extent(0, 90), extent(0, 90), splits=(30, 60))
    parts = cut_parts([made])
    equal = {(0, side, number): made_of(number + 1) for side in Side for number in range(3)}
    assert judge(0, made, parts, equal).equal
    other = {**equal, (0, Side.TARGET, 1): made_of(9)}
    assert not judge(0, made, parts, other).equal
    (suspect,) = find_suspects(0, made, parts, other, 5)
    assert (suspect.source, suspect.target) == (extent(30, 60), extent(30, 60))


def test_a_part_that_one_side_lacks_is_looked_into() -> None:
    made = pair(extent(0, 90), extent(0, 45), splits=(30, 60))
    parts = cut_parts([made])
    digests = {(0, part.side, part.number): made_of(part.number + 1) for part in parts}
    (suspect,) = find_suspects(0, made, parts, digests, 5)
    assert suspect.source == extent(60, 90)
    assert suspect.target.first == suspect.target.end


def test_in_order_an_equal_beginning_is_skipped_where_cuts_agree() -> None:
    made = pair(extent(0, 90), extent(500, 2 * PART_OFFSETS + 500), splits=(30, 60), match=Match.APPEND)
    parts = cut_parts([made])
    digests = {
        (0, Side.SOURCE, 0): made_of(1, 2),
        (0, Side.SOURCE, 1): made_of(3),
        (0, Side.SOURCE, 2): made_of(4),
        (0, Side.TARGET, 0): made_of(1, 2, 3),
        (0, Side.TARGET, 1): made_of(5),
    }
    assert not judge(0, made, parts, digests).equal
    (suspect,) = find_suspects(0, made, parts, digests, 5)
    assert (suspect.skipped, suspect.source.first, suspect.target.first) == (3, 60, 500 + PART_OFFSETS)
    digests[0, Side.TARGET, 1] = made_of(4)
    assert judge(0, made, parts, digests).equal


def test_a_set_is_judged_over_all_partitions_and_never_by_one() -> None:
    sides = [pair(extent(0, 9), None, match=Match.SET), pair(None, extent(0, 9), match=Match.SET)]
    parts = cut_parts(sides)
    digests = {(0, Side.SOURCE, 0): made_of(1, 2), (1, Side.TARGET, 0): made_of(2, 1)}
    verdicts = [judge(number, each, parts, digests) for number, each in enumerate(sides)]
    assert judge_set(verdicts).equal
    assert not judge_set(verdicts[:1]).equal
    assert not judge_set([*verdicts, replace(verdicts[0])]).equal


def test_values_are_shown_short_and_safe_around_their_first_difference() -> None:
    assert (show_bytes(None), show_bytes(b"")) == ("null", '""')
    assert show_bytes(b'a\x00\x1b["\\\xff') == "'a\\x00\\x1b[\"\\\\\\xff'"
    first, second = b"x" * 500, b"x" * 300 + b"y" + b"x" * 99
    mine, its = show_field(Field.VALUE, {"value": first}, {"value": second})
    assert mine != its
    assert "byte 284 on, of 500" in mine
    assert "y" in its.split("(")[0]
    assert len(mine) < 100
    early, _ = show_field(Field.TIMESTAMP, {"timestamp_ms": -1}, {"timestamp_ms": 1 << 62})
    assert early == "-1 (1969-12-31T23:59:59.999+00:00)"
    headers = [{"key": b"k", "value": None}] * 20
    assert "and 12 more" in show_field(Field.HEADERS, {"headers": headers}, {"headers": []})[0]


def test_text_is_shown_as_it_is_read_and_never_steers() -> None:
    document = '{"city": "Zürich", "n": 2}'
    assert show_bytes(document.encode()) == f"'{document}'"
    assert show_bytes(b"""it's "so" """) == '"it\'s \\"so\\" "'
    assert show_bytes("a\u202eb\u2028".encode()) == '"a\\xe2\\x80\\xaeb\\xe2\\x80\\xa8"'
    assert show_bytes("x€".encode()[:3]) == '"x\\xe2\\x82"'


@pytest.mark.parametrize(("first", "second"), [("café", "cafe\u0301"), ("orders", "\u043erders"), ("é", "è")])
def test_texts_that_may_look_alike_are_told_apart(first: str, second: str) -> None:
    mine, its = show_field(Field.VALUE, {"value": first.encode()}, {"value": second.encode()})
    assert mine.strip('"…') != its.strip('"…')
    assert all(each.strip("…").isascii() for each in (mine, its))
    cities = [{"value": f'{{"city": "Zürich", "n": {n}}}'.encode()} for n in (1, 2)]
    assert show_field(Field.VALUE, *cities)[1] == '\'{"city": "Zürich", "n": 2}\''


def test_requests_that_contradict_themselves_are_refused() -> None:
    assert parse_fields(["key,timestamp-type"]) == {Field.KEY, Field.TIMESTAMP_TYPE}
    for wrong in (
        {"match": Match.MAPPED},
        {"differences": -1},
        {"restore": "x", "selection": RestoreRequest(since_ms=1)},
        {"restore": "x", "selection": RestoreRequest(rename=parse_rename(prefix="a"))},
    ):
        with pytest.raises(UsageError):
            CompareRequest(**wrong)

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from maxbrod.archive.archive import Proof, ProofKind
from maxbrod.drill.html import speed_of, trend_section

DAY = 86_400_000


def drill(day: int, *, verdict: str = "proven", kind: ProofKind = ProofKind.DRILL, **details: Any) -> Proof:
    at = 1_790_000_000_000 + day * DAY
    return Proof(
        kind=kind, verdict=verdict, sound=verdict == "proven", started_at_ms=at - 1, finished_at_ms=at, details=details
    )


MEASURED: dict[str, Any] = {"records": 1000, "restore_s": 2.0, "partitions": 2, "partitions_known": 8}


def test_an_archive_without_drills_has_no_trend() -> None:
    assert trend_section([]) == ""
    assert trend_section([drill(0, kind=ProofKind.DEEP_CHECK)]) == ""


def test_one_drill_is_no_trend_and_is_listed() -> None:
    page = trend_section([drill(0, **MEASURED)])
    assert "<svg" not in page
    assert "A trend needs two" in page
    assert "2 of 8" in page
    assert ">500<" in page


def test_drills_are_drawn_in_their_order_with_title_and_labels_and_failures_stand_out() -> None:
    drills = [
        drill(9, **MEASURED),
        drill(0, records=1000, restore_s=1.0),
        drill(4, verdict="differs", records=100, restore_s=1.0),
        drill(5, verdict="failed"),
    ]
    page = trend_section(drills)
    svg = ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    name = "{http://www.w3.org/2000/svg}"
    texts = [each.text for each in svg.iter(f"{name}text")]
    assert texts[0] == "Speed of the restores in drills"
    assert {"records per second", "end of the drill (UTC)"} <= set(texts)
    line = svg.find(f"{name}polyline")
    assert line is not None
    places = [tuple(map(float, each.split(","))) for each in line.attrib["points"].split()]
    assert places == sorted(places)
    heights = [y for _, y in places]
    # 1,000, 100 and 500 records a second: higher is a smaller number.
    assert heights[0] < heights[2] < heights[1]
    assert len(list(svg.iter(f"{name}circle"))) == 2
    assert len(list(svg.iter(f"{name}rect"))) == 1
    # What failed before it restored anything is in the table alone.
    assert "not measured" in page
    assert page.count("<tr>") == 5
    assert page.index(">failed<") < page.index(">differs<")


@pytest.mark.parametrize(
    "details", [{}, {"records": 0, "restore_s": 1.0}, {"records": 5, "restore_s": 0}, {"records": "5", "restore_s": 1}]
)
def test_what_was_not_measured_has_no_speed(details: dict[str, Any]) -> None:
    assert speed_of(drill(0, **details)) is None


def test_names_of_a_foreign_document_are_escaped() -> None:
    page = trend_section([drill(0, verdict="<script>"), drill(1, verdict="<script>", **MEASURED), drill(2, **MEASURED)])
    assert "<script>" not in page

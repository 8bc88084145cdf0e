"""Offsets are exact if that is possible and cheap, else append; the plan gives the reason."""

from __future__ import annotations

from typing import Any

import pytest

from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.restore.plan.sources import Source
from maxbrod.restore.plan.targets import LogExtent, OffsetsPlan, plan_offsets
from support.catalog_rows import TOPIC_ID


def choose(wanted: str = "auto", extent: tuple[int, int] | None = None, **changes: Any) -> OffsetsPlan:
    options = {"repartitioned": changes.pop("repartitioned", False), "markers_allowed": changes.pop("markers", True)}
    values: dict[str, Any] = {"first_offset": 0, "asked_end": 10**9, **changes}
    source = Source(topic="orders", topic_id=TOPIC_ID, partition=0, asked_first=0, **values)
    log = None if extent is None else LogExtent(start=extent[0], end=extent[1])
    return plan_offsets(OffsetsMode(wanted), source, log, **options)


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        ({}, "exact"),
        ({"extent": (0, 0)}, "exact"),
        ({"extent": (7, 7), "first_offset": 7}, "exact"),
        ({"extent": (7, 7), "first_offset": 6}, "append"),
        ({"extent": (0, 1), "first_offset": 5}, "append"),
        ({"repartitioned": True}, "append"),
        ({"first_offset": 400_000_000}, "exact"),
        ({"first_offset": 430_000_000}, "append"),
        ({"holes": 1_000_000}, "exact"),
        ({"holes": 1_000_000, "aborted": 100_000}, "append"),
        ({"holes": 10_000, "markers": False}, "exact"),
        ({"holes": 13_000, "markers": False}, "append"),
        ({"holes": 13_000, "markers": None}, "append"),
    ],
)
def test_auto_keeps_offsets_where_the_target_is_empty_and_the_fill_is_cheap(
    arguments: dict[str, Any], mode: str
) -> None:
    made = choose(**arguments)
    assert made.mode == mode
    assert made.why
    assert made.obstacle is None


def test_the_cost_counts_from_where_the_target_stands() -> None:
    made = choose(extent=(5_000_000, 5_000_000), first_offset=12_000_000, holes=18_000)
    assert (made.cost.leading, made.cost.holes, made.cost.seconds) == (7_000_000, 18_000, 2.0)


def test_exact_that_cannot_be_is_an_obstacle_and_never_silently_append() -> None:
    made = choose("exact", (0, 1))
    assert (made.mode, made.obstacle) == ("exact", "the target holds offsets 0 to 1")
    assert choose("exact", first_offset=10**9).obstacle is None, "expensive is not impossible"
    assert choose("append").mode == "append"


def test_holes_are_never_more_than_there_are_offsets() -> None:
    assert choose(first_offset=10, asked_end=20, holes=5, aborted=500).cost.holes == 10

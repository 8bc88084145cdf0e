"""Runs are in the order of their commits, whatever the clocks of the machines said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.snapshots import find_run
from maxbrod.archive.surveyed import SurveyedCatalog
from maxbrod.catalog.rows import Run
from maxbrod.errors import UsageError
from support.catalog_rows import run, segment

if TYPE_CHECKING:
    from maxbrod.catalog.queries import Queries
    from support.catalog_places import Archive

NOON = 1_700_000_000_000


def at(run_id: str, time_ms: int) -> Run:
    return run(run_id, started_at=time_ms, finished_at=time_ms, written_at=time_ms)


def last_snapshot(catalog: Queries) -> str | None:
    last = catalog.last_snapshot_run()
    return None if last is None else last.snapshot


def test_a_clock_that_steps_back_does_not_change_the_order_of_runs(folder: Archive) -> None:
    catalog = folder.create()
    catalog.commit([segment(0, 10), at("20261116T120000Z-aaaaaa", NOON)])
    catalog.commit([segment(10, 20), at("20261116T110000Z-bbbbbb", NOON - 3_600_000)])
    catalog.commit([at("20261116T100000Z-cccccc", NOON - 7_200_000)])
    again = folder.open()
    assert [each.run_id[-6:] for each in again.runs()] == ["aaaaaa", "bbbbbb", "cccccc"]
    assert find_run(again.runs(), "latest").run_id == "20261116T100000Z-cccccc"
    assert last_snapshot(again) == "snapshots/20261116T100000Z-cccccc.json.zst"


def test_runs_keep_their_order_when_their_rows_are_folded_into_one_file(folder: Archive) -> None:
    catalog = folder.create()
    for number in range(20):
        catalog.commit([at(f"run-{number:02}", NOON - number)])
    assert [each.run_id for each in folder.open().runs()] == [f"run-{number:02}" for number in range(20)]
    assert last_snapshot(catalog) == "snapshots/run-19.json.zst"


def test_runs_of_before_commits_were_recorded_come_first_by_their_clocks() -> None:
    catalog = SurveyedCatalog(
        "in memory",
        [
            Run(run_id="d", started_at=0, finished_at=1, written_at=1, snapshot="d", commit=7),
            Run(run_id="c", started_at=0, finished_at=2, written_at=2, snapshot="c", commit=6),
            at("b", 9_000),
            at("a", 8_000),
        ],
    )
    assert [each.run_id for each in catalog.runs()] == ["a", "b", "c", "d"]
    assert last_snapshot(catalog) == "d"


def test_what_a_run_says_of_itself_cannot_pass_for_its_commit() -> None:
    liar = run("liar", statistics={"a": '{"commit": 99,', "commit": 99})
    last = Run(run_id="z", started_at=0, finished_at=0, written_at=0, snapshot="z", commit=1)
    catalog = SurveyedCatalog("in memory", [liar, last])
    assert last_snapshot(catalog) == "z"
    assert catalog.runs()[-1].run_id == "z"


def test_no_run_is_the_latest_of_none() -> None:
    with pytest.raises(UsageError, match="no runs"):
        find_run([], "latest")

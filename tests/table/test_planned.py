"""Queries whose reads the driver plans, and those that Spark must plan, have the same answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import Config
from maxbrod.query.options import ScopeOptions
from maxbrod.query.run import Query
from maxbrod.table import views
from support.table_archives import HOLDING
from support.table_queries import READ, make, plan, rows

if TYPE_CHECKING:
    from pathlib import Path

COUNT = "SELECT topic, count(*) FROM records WHERE partition = 3 GROUP BY topic HAVING count(*) > 3"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every table were too large for the driver to hold."""
    monkeypatch.setattr(HOLDING, -1)


@pytest.mark.usefixtures("large")
def test_only_tasks_run_python_and_for_counts_nothing_does(tmp_path: Path, spark: Any) -> None:
    with Query(Config(archive=str(make(tmp_path / "archive"))), ScopeOptions(), session=spark) as opened:
        assert "MapInArrow" in plan(opened, READ)
        assert "Relation" not in plan(opened, READ)
        assert "Python" not in plan(opened, COUNT)
        assert "MapInArrow" not in plan(opened, COUNT)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("slices", ["few", "many"])
def test_too_many_slices_for_the_driver_are_planned_by_spark(
    slices: str, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slices == "many":
        monkeypatch.setattr(views, "_PACKED_BYTES_MAX", 0)
        monkeypatch.setattr(views, "are_in_rows", lambda _: False)
    with Query(Config(archive=str(make(tmp_path / "archive"))), ScopeOptions(), session=spark) as opened:
        assert ("MapInArrow" in plan(opened, READ)) is (slices == "few")
        assert rows(opened, READ) == [(29, b"value")]
        assert rows(opened, COUNT) == [("orders", 40)]

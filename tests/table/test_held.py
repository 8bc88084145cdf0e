"""Small tables that the driver reads itself: the same answers without a Python task, and never old ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import Config
from maxbrod.errors import UsageError
from maxbrod.query.options import ScopeOptions
from maxbrod.query.run import Query
from maxbrod.table import views
from maxbrod.table.views import HeldTables, RecordView
from support.native_logs import data_batch
from support.table_archives import write
from support.table_queries import READ, make, plan, rows

if TYPE_CHECKING:
    from pathlib import Path


def view(archive: Path, topic: str = "orders") -> RecordView:
    return RecordView(name=topic, options={"path": str(archive)}, topic=topic)


def test_no_task_runs_python_for_a_small_table(tmp_path: Path, spark: Any) -> None:
    archive = make(tmp_path / "archive")
    with Query(Config(archive=str(archive)), ScopeOptions(), session=spark) as opened:
        assert "MapInArrow" not in plan(opened, READ)
        assert rows(opened, READ) == [(29, b"value")]
        assert opened.ask("SELECT * FROM orders").frame.rdd.getNumPartitions() == 1, "so that nothing is exchanged"
        with pytest.raises(UsageError, match="line 2, column 8"):
            opened.ask("SELECT\n       nothing FROM orders")
        with pytest.raises(UsageError):
            opened.ask("DROP VIEW orders")


def test_a_later_statement_sees_what_was_archived_meanwhile(tmp_path: Path, spark: Any) -> None:
    archive = make(tmp_path / "archive")
    with Query(Config(archive=str(archive)), ScopeOptions(), session=spark) as opened:
        assert rows(opened, "SELECT max(offset) FROM orders") == [(39,)]
        write(archive, [data_batch(40, 5)], run_id="run-3", written_at=3)
        assert rows(opened, "SELECT max(offset) FROM orders") == [(44,)]


def test_a_table_is_read_once_as_long_as_its_slices_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make(tmp_path / "archive")
    tables = HeldTables()
    first = tables.read(view(archive))
    assert first.table is not None
    assert first.table.num_rows == 40
    monkeypatch.setattr(views, "_read", lambda *_: pytest.fail("it was read again"))
    assert tables.read(view(archive)) is first


@pytest.mark.parametrize("limit", ["_STORED_BYTES_MAX", "_LOCAL_SLICES_MAX", "_DECODED_BYTES_MAX"])
def test_a_table_beyond_a_limit_is_left_to_tasks(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make(tmp_path / "archive")
    monkeypatch.setattr(views, limit, 3)
    assert HeldTables().read(view(archive)).table is None


def test_all_tables_of_a_prompt_together_have_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make(tmp_path / "archive")
    tables = HeldTables()
    monkeypatch.setattr(views, "_DECODED_BYTES_MAX", tables.read(view(archive)).bytes + 10)
    assert tables.read(view(archive, "clicks-eu.v1")).table is None


def test_what_cannot_be_read_is_left_to_the_tasks_that_may_not_need_it(tmp_path: Path) -> None:
    archive = make(tmp_path / "archive")
    # The last of the 40 records. The folder of offset 0 has an object of the other topic, too.
    max(archive.rglob("segments/orders/**/*.log")).unlink()
    assert HeldTables().read(view(archive)).table is None


def test_options_select_what_is_held(tmp_path: Path) -> None:
    some = replace(view(make(tmp_path / "archive")), options={"path": str(tmp_path / "archive"), "since": "1035"})
    found = HeldTables().read(some).table
    assert found is not None
    assert found["offset"].to_pylist() == [35, 36, 37, 38, 39]

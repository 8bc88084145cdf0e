"""The demo is the first thing a stranger runs: it must end well, or say that it does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from maxbrod.api.reports import BackupReport
from maxbrod.cli import demo
from maxbrod.cli.main import run
from maxbrod.errors import IncompleteError
from maxbrod.sandbox.inventory import TopicInventory

if TYPE_CHECKING:
    from pathlib import Path


def test_the_demo_brings_every_acknowledged_record_back_and_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(["demo", "--records", "5000", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert document["complete"] is True
    topics = {each["topic"]: each for each in document["topics"]}
    assert {name: topic["records"] for name, topic in topics.items()} == {
        "orders": 3000,
        "clicks": 1500,
        "customers": 500,
        "payments": 600,
    }
    assert all(topic["identical"] and topic["acknowledged"] == topic["records"] for topic in topics.values())
    assert all(topic["restored"] == topic["records"] for topic in topics.values())
    assert document["run"]["complete"] is True
    assert topics["clicks"]["without_key"] == 1500
    assert topics["customers"]["tombstones"] > 0
    assert topics["orders"]["with_headers"] == 1000
    assert (topics["payments"]["aborted"], topics["payments"]["markers"]) == (200, 8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("records", "identical", "restored"), [(9, True, 10), (10, False, 10), (10, True, 9), (10, True, -1)]
)
def test_the_demo_says_so_when_a_record_is_missing_or_not_as_it_was(
    capsys: pytest.CaptureFixture[str], records: int, identical: bool, restored: int
) -> None:
    inventory = TopicInventory(
        topic="orders",
        partitions=1,
        records=records,
        without_key=0,
        tombstones=0,
        with_headers=0,
        aborted=0,
        markers=0,
        bytes=1,
        codecs=("none",),
        first_timestamp_ms=None,
        last_timestamp_ms=None,
    )
    found = demo._Archived(inventory=inventory, acknowledged=10, stored_bytes=1, identical=identical)
    report = BackupReport(
        run_id="run",
        archive="/archive",
        started_at_ms=0,
        finished_at_ms=1,
        topics=(),
        notices=(),
        objects=0,
        version=0,
        committed=True,
        recovery_point_ms=0,
    )
    with pytest.raises(IncompleteError, match="orders") as caught:
        demo._report([found], {"orders": restored}, report, as_json=False)
    assert caught.value.exit_code == 3
    assert "complete" not in capsys.readouterr().out
    assert all(column.header for column in demo._table([found], {"orders": restored}).columns)

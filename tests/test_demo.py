"""The demo is the first thing a stranger runs: it must end well, or say that it does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from maxbrod.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path


def test_the_demo_finds_every_acknowledged_record_and_leaves_nothing_behind(
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
    assert topics["clicks"]["without_key"] == 1500
    assert topics["customers"]["tombstones"] > 0
    assert topics["orders"]["with_headers"] == 1000
    assert (topics["payments"]["aborted"], topics["payments"]["markers"]) == (200, 8)
    assert list(tmp_path.iterdir()) == []


def test_the_demo_says_so_when_a_record_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from maxbrod.cli import demo  # noqa: PLC0415
    from maxbrod.errors import IncompleteError  # noqa: PLC0415
    from maxbrod.sandbox.inventory import TopicInventory  # noqa: PLC0415

    found = TopicInventory(
        topic="orders",
        partitions=1,
        records=9,
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
    with pytest.raises(IncompleteError, match="'orders': 1") as caught:
        demo._report({"orders": 10}, [found], as_json=False)
    assert caught.value.exit_code == 3
    assert "complete" not in capsys.readouterr().out
    assert all(column.header for column in demo._table([found]).columns)

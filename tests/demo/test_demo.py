"""The demo is the first thing a stranger runs: it must end well, or say that it does not."""

from __future__ import annotations

import json
import time
from io import StringIO
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console
from rich.text import Text

from maxbrod.backup.report import BackupReport
from maxbrod.cli.main import run
from maxbrod.compare.report import CompareReport, PartitionComparison
from maxbrod.demo import cli as demo
from maxbrod.demo.cli import Recording
from maxbrod.demo.mount_story import MountTale, Moved
from maxbrod.demo.story import Archived, Findings, Reading, Resumed
from maxbrod.errors import EXIT_USAGE, IncompleteError
from maxbrod.sandbox.events import TopicInventory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.full


def findings(
    resumed: Sequence[Reading], *, records: int = 10, identical: bool = True, restored: int = 10
) -> Findings[Reading]:
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
    partition = PartitionComparison(
        source_topic="orders",
        target_topic="orders",
        partition=0,
        match="exact",
        source_records=10,
        target_records=restored,
        source_digest="",
        target_digest="",
        equal=restored >= 0,
    )
    return Findings(
        archived=[Archived(inventory=inventory, acknowledged=10, stored_bytes=1, identical=identical)],
        run=report,
        compared=CompareReport(
            source="/archive",
            target="",
            started_at_ms=0,
            finished_at_ms=1,
            ignored=(),
            partitions=(partition,),
            differences=(),
        ),
        resumed=resumed,
    )


@pytest.mark.parametrize(
    ("records", "identical", "restored", "after", "went_on_at"),
    [
        (9, True, 10, 5, 5),
        (10, False, 10, 5, 5),
        (10, True, 9, 5, 5),
        (10, True, -1, 5, 5),
        (10, True, 10, 4, 5),
        (10, True, 10, 6, 5),
        (10, True, 10, 5, 4),
    ],
)
def test_the_demo_says_so_when_a_record_is_missing_or_not_as_it_was_or_read_twice(
    capsys: pytest.CaptureFixture[str], records: int, identical: bool, restored: int, after: int, went_on_at: int
) -> None:
    reader = Resumed(topic="orders", before=5, after=after, stood_at=5, went_on_at=went_on_at, acknowledged=10)
    told = findings([reader], records=records, identical=identical, restored=restored)
    with pytest.raises(IncompleteError, match="orders") as caught:
        demo._report(told, Recording(), as_json=False)
    assert caught.value.exit_code == 3
    assert "complete" not in capsys.readouterr().out
    assert all(column.header for column in demo._table(told).columns)


def moved(**counts: int) -> Moved:
    return Moved(
        topic="orders", **{"before": 5, "on_mount": 3, "after": 2, "distinct": 10, "acknowledged": 10, **counts}
    )


@pytest.mark.parametrize(
    "counts", [{"after": 1}, {"distinct": 9, "after": 1}, {"on_mount": 0, "after": 5}, {"after": 3}]
)
def test_the_demo_of_a_mount_says_so_when_the_group_did_not_read_each_record_once(
    capsys: pytest.CaptureFixture[str], counts: dict[str, int]
) -> None:
    told = MountTale(findings=findings([moved(**counts)]), first_record_s=2.0, restored_s=20.0)
    with pytest.raises(IncompleteError, match="orders"):
        demo._report_mount(told, Recording(), as_json=False)
    assert "complete" not in capsys.readouterr().out


def test_the_demo_of_a_mount_says_how_long_consumers_waited(capsys: pytest.CaptureFixture[str]) -> None:
    told = MountTale(findings=findings([moved()]), first_record_s=2.0, restored_s=20.0)
    demo._report_mount(told, Recording(), as_json=False)
    assert "complete: 2.0 s after the loss" in capsys.readouterr().out


@pytest.mark.slow
def test_a_group_reads_on_from_a_mount_of_a_lost_cluster_and_moves_to_the_new_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["demo", "--mount", "--records", "2000", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["complete"]
    assert all(reader["exact"] and reader["on_mount"] for reader in told["group"])
    assert told["first_record_s"] < told["restored_s"]


def test_a_recording_is_one_file_that_plays_lines_in_their_order_and_loads_nothing(tmp_path: Path) -> None:
    shown, recording = Console(file=StringIO(), width=40), Recording()
    recording.print(shown, Text("first"))
    time.sleep(0.05)
    recording.print(shown, Text("second, <angular>"))
    recording.save(tmp_path / "demo.svg", title="make demo")
    drawn = (tmp_path / "demo.svg").read_text()
    root = ET.fromstring(drawn)
    lines = [each for each in root.iter() if each.tag.endswith("text") and "later" in each.get("class", "")]
    delays = [float(each.get("style", "").split()[-1].removesuffix("s")) for each in lines if (each.text or "").strip()]
    assert [(each.text or "").replace("\xa0", " ") for each in lines if (each.text or "").strip()] == [
        "first",
        "second, <angular>",
    ]
    assert delays == sorted(delays)
    assert delays[0] < delays[1]
    assert "url(http" not in drawn
    assert "font-face" not in drawn
    assert "first" in shown.file.getvalue()  # type: ignore[attr-defined] # a StringIO


def test_a_recording_into_a_folder_that_is_missing_is_refused_before_the_demo_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "--record", str(tmp_path / "missing" / "demo.svg")]) == EXIT_USAGE
    assert "cannot write" in capsys.readouterr().err

"""What a restore says of itself: each thing once, and by its right name. Without Kafka."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from maxbrod.cli.output import out
from maxbrod.errors import CorruptDataError, StorageFullError
from maxbrod.groups.plan import GroupPosition
from maxbrod.model import GapReason
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.report import PartitionReport, report_of
from maxbrod.restore.summary import decide, print_failures, print_groups, print_plan
from support.catalog_rows import gap
from support.restore_plans import plan


def position(source: int | None, offset: int, **changes: Any) -> GroupPosition:
    values: dict[str, Any] = {"group": "g", "topic": "orders", "partition": 0, "move": "same", **changes}
    return GroupPosition(source_offset=source, offset=offset, **values)


def test_an_obstacle_that_ends_the_command_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [gap(0, 5, reason=GapReason.CORRUPT), gap(5, 9, reason=GapReason.UNEXPLAINED)]
    with pytest.raises(CorruptDataError, match="offsets 0 to 5, and one more"):
        decide(plan(rows), dry_run=False, yes=True, quiet=False, as_json=False)
    told = capsys.readouterr().err
    assert "unexplained: orders-0" in told
    assert "offsets 0 to 5" not in told, "the error says so"
    assert decide(plan(rows), dry_run=True, yes=True, quiet=False, as_json=False) == CorruptDataError.exit_code
    assert capsys.readouterr().out.count("offsets 0 to 5") == 1


def test_a_failure_names_its_partition_once_and_partitions_share_it(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(replace(plan([]), topics=()), [], started_at_ms=0, resumed=False)
    parts = tuple(
        PartitionReport(
            source="orders",
            target="orders",
            partition=number,
            offsets="exact",
            records=0,
            end=0,
            map={},
            failure=StorageFullError("the disk is full", object_name=f"orders-{number}").as_dict(),
        )
        for number in range(2)
    )
    print_failures(replace(report, partitions=parts), out)
    assert capsys.readouterr().out == "orders-0 and 1 more: the disk is full\n"


def test_a_group_at_another_offset_is_not_shown_as_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    print_groups([position(7, 7), position(7, 107), position(None, 3)], None)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("g ")]
    assert [line[-2:] for line in lines] == [["7", "same"], ["same", "record"], ["same", "record"]]


def test_a_plan_says_that_groups_may_see_records_twice_only_if_they_can(capsys: pytest.CaptureFixture[str]) -> None:
    moved = plan([gap(0, 5)], RestoreRequest(partition_count=4, groups=("g",)))
    print_plan(moved)
    assert "some are seen twice; the report counts them" in capsys.readouterr().out
    print_plan(plan([gap(0, 5)], RestoreRequest(groups=("g",))))
    assert "twice" not in capsys.readouterr().out

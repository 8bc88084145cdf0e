"""What we remember about another tool's archive stays out of its sight, and out of our own way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.foreign_target import ForeignTarget, TargetRequest
from maxbrod.config import StorageConfig
from maxbrod.drill.run import forget, own_drill, remember
from maxbrod.layouts.binlog.format import MAGIC
from maxbrod.storage.composed import OWN_FOLDER

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """The smallest archive of another layout that there is: a partition without segments."""
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "index_partition_000").write_bytes(MAGIC)
    return tmp_path


def test_many_restores_never_hide_the_layout_of_an_archive(foreign: Path) -> None:
    for number in range(200):
        plan = foreign / OWN_FOLDER / "restores" / f"0123456789abcdef-{number}" / "plan.json.zst"
        plan.parent.mkdir(parents=True)
        plan.write_bytes(b"")
    survey = open_archive(str(foreign)).survey
    assert survey is not None
    assert survey.layout == "binlog"
    target = ForeignTarget(str(foreign), StorageConfig(), TargetRequest(layout="binlog"))
    assert target.survey.layout == "binlog"


def test_a_drill_leaves_nothing_among_the_objects_of_another_tool(foreign: Path) -> None:
    archive = open_archive(str(foreign))
    remember(archive.storage, own_drill("0123456789abcdef", "cluster", sandbox=False))
    assert {each.name for each in foreign.iterdir()} - {".maxbrod-tmp"} == {"orders", OWN_FOLDER}
    assert [each.path for each in archive.storage.list("drills")] == ["drills/0123456789abcdef.json"]
    forget(archive.storage, "0123456789abcdef")
    assert list(archive.storage.list("drills")) == []

"""The examples of docs/catalog.md run on a real archive, and agree with what `maxbrod` says itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxbrod.archive.archive import open_for_writing
from maxbrod.layouts.kafka.format import SegmentLimits
from support.catalog_rows import gap
from support.native_logs import data_batch
from support.table_archives import write

if TYPE_CHECKING:
    import pytest

PAGE = Path(__file__).parents[1] / "docs" / "catalog.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def run_block(text: str, archive: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"archive": str(archive)}
    exec(compile(text, str(PAGE), "exec"), names)
    return names


def test_other_tools_read_the_catalog_as_the_page_says(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    archive = tmp_path / "archive"
    rows = write(archive, [data_batch(base, 10) for base in range(0, 40, 10)], limits=SegmentLimits(records_max=10))
    missing = gap(40, 50, topic=rows[0].topic, topic_id=rows[0].topic_id, partition=rows[0].partition)
    open_for_writing(str(archive)).catalog.commit([missing])
    polars, duckdb, arrow = (run_block(each, archive) for each in BLOCK.findall(PAGE.read_text(encoding="utf-8")))

    stored = ("orders", 40, sum(row.bytes for row in rows), sum(row.raw_bytes for row in rows))
    assert polars["stored"].rows() == duckdb["stored"] == [stored]
    assert polars["gaps"].rows() == duckdb["gaps"] == [("orders", 3, 40, 50, str(missing.reason))]
    assert polars["newest"].rows() == duckdb["newest"]
    ((_, _, end, newest),) = duckdb["newest"]
    assert (end, newest.microsecond) == (40, 39_000)
    assert [run_id for run_id, _ in duckdb["runs"]] == ["run-1"]
    assert arrow["largest"].to_dict() == {"orders": stored[2]}

"""Questions to a small archive of two topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.query.run import Query
from support import plain_batches
from support.native_logs import data_batch, pack
from support.plain_log import Record
from support.table_archives import write

if TYPE_CHECKING:
    from pathlib import Path

READ = "SELECT max(offset), max(value) FROM orders WHERE offset < 30"


def make(folder: Path) -> Path:
    """Two topics: orders with 40 records in 4 segments, and one whose name needs backticks."""
    write(folder, [data_batch(base, 10) for base in range(0, 40, 10)], limits=SegmentLimits(records_max=10))
    values = [b'{"n": 1, "who": "ann"}', b'{"n": 2, "who": "bob"}', b"\xff\x00"]
    records = [
        plain_batches.Record(offset=i, timestamp=9_000 + i, key=b"", value=value) for i, value in enumerate(values)
    ]
    write(folder, [pack(records)], run_id="run-2", topic="clicks-eu.v1", topic_id="CLICKS", written_at=2)
    return folder


def rows(query: Query, sql: str, **options: Any) -> list[tuple[Any, ...]]:
    table = query.collect(query.ask(sql), **options).table
    return [tuple(row.values()) for row in table.to_pylist()]


def plan(query: Query, sql: str) -> str:
    return str(query.ask(sql).frame._jdf.queryExecution().optimizedPlan().toString())


def records(frame: Any) -> dict[int, Record]:
    """In the form of the oracle's, by offset. Milliseconds are asked of Spark: its own timestamps depend on a zone."""
    rows = frame.selectExpr("offset", "unix_millis(timestamp) as at", "key", "value", "headers").toArrow().to_pylist()
    assert len({row["offset"] for row in rows}) == len(rows)
    return {row["offset"]: Record(row["at"], row["key"], row["value"], _headers(row["headers"])) for row in rows}


def _headers(found: list[dict[str, Any]] | None) -> tuple[tuple[bytes, bytes | None], ...]:
    assert found != []  # as in Spark's own source
    return tuple((each["key"].encode(), each["value"]) for each in found or ())

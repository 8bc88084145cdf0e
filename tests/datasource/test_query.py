"""SQL over archives: the views, what is read for a query, and how mistakes end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from native_logs import NAME, data_batch, pack
from reference import Record

from datasource.archives import write
from maxbrod.api.query import Query
from maxbrod.api.query_scope import QueryScope
from maxbrod.config import Config
from maxbrod.layouts.kafka.slices import SegmentLimits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def make(folder: Path) -> Path:
    """Two topics: orders with 40 records in 4 segments, and one whose name needs backticks."""
    write(folder, [data_batch(base, 10) for base in range(0, 40, 10)], limits=SegmentLimits(records_max=10))
    values = [b'{"n": 1, "who": "ann"}', b'{"n": 2, "who": "bob"}', b"\xff\x00"]
    records = [Record(offset=i, timestamp=9_000 + i, key=b"", value=value) for i, value in enumerate(values)]
    write(folder, [pack(records)], run_id="run-2", topic="clicks-eu.v1", topic_id="CLICKS", written_at=2)
    return folder


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("query") / "archive")


@pytest.fixture
def query(archive: Path, spark: Any) -> Iterator[Query]:
    with Query(Config(archive=str(archive)), QueryScope(), session=spark) as opened:
        yield opened


def rows(query: Query, sql: str, **options: Any) -> list[tuple[Any, ...]]:
    table = query.collect(query.ask(sql), **options).table
    return [tuple(row.values()) for row in table.to_pylist()]


def test_records_and_topics_are_views(query: Query) -> None:
    assert rows(query, "SELECT topic, count(*) FROM records GROUP BY topic ORDER BY 1;") == [
        ("clicks-eu.v1", 3),
        ("orders", 40),
    ]
    assert rows(query, "SELECT max(offset) FROM `clicks-eu.v1` -- the last") == [(2,)]
    assert rows(query, "SELECT count(*), min(partition) FROM ORDERS") == [(40, NAME.partition)]


@pytest.mark.parametrize(
    ("sql", "used"),
    [
        ("SELECT count(*) FROM records", {"records": []}),
        ("SELECT key, count(*) FROM orders WHERE offset > 3 GROUP BY key", {"orders": ["key", "offset"]}),
        (
            "SELECT * EXCEPT (value, headers) FROM orders",
            {"orders": ["key", "topic", "partition", "offset", "timestamp", "timestampType"]},
        ),
        (
            """SELECT o.offset FROM orders o JOIN records r ON o.offset = r.offset AND r.topic = 'orders'
            WHERE EXISTS (SELECT 1 FROM records x WHERE x.timestampType = 0)""",
            {"orders": ["offset"], "records": ["offset", "topic", "timestampType"]},
        ),
        ("SELECT (SELECT max(timestamp) FROM orders) AS t, 1 AS one", {"orders": ["timestamp"]}),
        ("SELECT 1 AS one", {}),
    ],
)
def test_only_the_columns_that_a_query_uses_are_read(query: Query, sql: str, used: dict[str, list[str]]) -> None:
    asked = query.ask(sql)
    assert asked.used == {name: frozenset(columns) for name, columns in used.items()}
    assert query.collect(asked).table.num_rows > 0

"""SQL over archives: the views, what is read for a query, and how mistakes end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import maxbrod
from maxbrod.config import Config
from maxbrod.errors import UsageError
from maxbrod.query.options import ScopeOptions
from maxbrod.query.run import Query
from maxbrod.table.scans import named_in
from support.full_archive import fill
from support.native_logs import NAME, data_batch
from support.table_archives import HOLDING, write
from support.table_queries import make, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.archives import Place


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("query") / "archive")


@pytest.fixture(scope="module")
def query(archive: Path, spark: Any) -> Iterator[Query]:
    with Query(Config(archive=str(archive)), ScopeOptions(), session=spark) as opened:
        yield opened


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
def test_only_the_columns_that_a_query_uses_are_read(
    query: Query, sql: str, used: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "_held", None)
    asked = query.ask(sql)
    assert asked.used == {name: frozenset(columns) for name, columns in used.items()}
    assert query.collect(asked).table.num_rows > 0


PAGE = Path(__file__).parents[2] / "docs" / "query.md"


def test_the_questions_of_the_page_have_answers(query: Query) -> None:
    answers = [rows(query, sql) for sql in re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)]
    counts, hours, places, last, changed, stored, gaps, groups = answers
    assert counts == [("clicks-eu.v1", 3), ("orders", 40)]
    assert [count for _, count in hours] == [40]
    assert places == []
    assert last == [(b"k", b"value", 39)]
    assert changed == []
    assert [(topic, count) for topic, *_, count in stored] == counts
    assert (gaps, groups) == ([], [])


def test_the_queries_of_the_pages_by_task_have_answers(query: Query) -> None:
    pages = sorted((PAGE.parent / "howto").glob("*.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    answers = [rows(query, sql) for sql in re.findall(r'maxbrod query \S+ "([^"]+)"', text)]
    since, values, leaks = answers
    assert [(partition, offset) for partition, offset, *_ in since] == [], "all records are older than the deploy"
    assert values == [("value",)] * 5
    assert leaks == [(0,)]


def test_no_topic_takes_a_tables_name_away(tmp_path: Path, spark: Any) -> None:
    for number, topic in enumerate(("Records", "gaps", "Twice", "twice", "plain"), 1):
        batch, topic_id = data_batch(0, number), f"ID{number}"
        write(tmp_path / "archive", [batch], topic=topic, topic_id=topic_id, run_id=f"run-{number}", written_at=number)
    with Query(Config(archive=str(tmp_path / "archive")), ScopeOptions(), session=spark) as opened:
        sql = "SELECT (SELECT count(*) FROM records) a, (SELECT count(*) FROM gaps) b, (SELECT count(*) FROM plain) c"
        assert rows(opened, sql) == [(15, 0, 5)]
        with pytest.raises(UsageError, match="cannot be found"):
            opened.ask("SELECT * FROM twice")
        assert rows(opened, "SELECT count(*) FROM records WHERE topic = 'twice'") == [(4,)]


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT value, records.key FROM records", ["records"]),
        ("SELECT 'orders' AS value FROM `orders-eu` -- orders", ["orders-eu"]),
        ("WITH x AS (SELECT * FROM Orders) SELECT (SELECT 1 FROM value) FROM x, gaps", ["gaps", "orders", "value"]),
        ("SELECT * FROM IDENTIFIER('or' || 'ders') WHERE 'orders' = key", ["key", "orders"]),
        ("SELECT * FROM orders WHERE EXISTS (SELECT 1 FROM `a.b`)", ["a.b", "orders"]),
        ("SELEC nothing", []),
    ],
)
def test_only_the_tables_that_a_query_reads_are_made_ready(spark: Any, sql: str, names: list[str]) -> None:
    known = ("records", "gaps", "orders", "orders-eu", "value", "key", "a.b", "b", "eu")
    assert sorted(named_in(spark, sql, known)) == names


def test_a_program_gets_arrow_and_a_notebook_views(archive: Path, spark: Any) -> None:
    table = maxbrod.query(archive, "SELECT offset FROM orders ORDER BY offset", limit=2, session=spark)
    assert table.to_pydict() == {"offset": [0, 1]}
    since = maxbrod.query(archive, "SELECT min(offset) FROM orders", since="1035", exclude=["clicks*"], session=spark)
    assert since.column(0).to_pylist() == [35]
    then = maxbrod.query(archive, "SELECT count(*) FROM records", as_of="run-1", partitions="3", session=spark)
    assert then.column(0).to_pylist() == [40]
    names = maxbrod.views(spark, archive, prefix="b_", value="clicks-eu.v1=utf8", permissive=True)
    try:
        assert names == ["b_records", "b_clicks-eu.v1", "b_orders", "b_segments", "b_gaps", "b_runs", "b_groups"]
        found = spark.sql("SELECT value FROM `b_clicks-eu.v1` WHERE offset > 0 ORDER BY offset").collect()
        assert [row.value for row in found] == ['{"n": 2, "who": "bob"}', None]
        assert spark.sql("SELECT run_id, command FROM b_runs").count() == 2
        assert [view.name for view in spark.catalog.listTables() if view.name == "orders"] == []
    finally:
        for name in names:
            spark.catalog.dropTempView(name)


def test_groups_and_gaps_are_tables(local_place: Place, spark: Any) -> None:
    fill(local_place)
    with Query(Config(archive=local_place.url), ScopeOptions(), session=spark) as opened:
        groups = rows(opened, "SELECT group_id, topic, partition, offset, lag FROM groups WHERE topic IS NOT NULL")
        assert ("billing", "orders", 1, 12, -2) in groups
        gaps = "SELECT topic, partition, base_offset, offsets, reason FROM gaps WHERE newest"
        assert rows(opened, gaps) == [("orders", 0, 20, 5, "compacted")]
        assert rows(opened, "SELECT run_id, exit_code FROM runs ORDER BY finished_at DESC LIMIT 1") == [("run-2", 3)]
        newest = "SELECT sum(records), min(max_timestamp) IS NULL FROM segments WHERE newest AND topic = 'orders'"
        assert rows(opened, newest) == [(30, False)]


def test_a_count_opens_no_object(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make(tmp_path / "archive")
    for each in archive.rglob("*.log"):
        each.unlink()
    monkeypatch.setattr(HOLDING, -1)
    with Query(Config(archive=str(archive)), ScopeOptions(), session=spark) as opened:
        sql = "SELECT topic, partition, count(*) AS n FROM records GROUP BY ALL ORDER BY ALL"
        assert rows(opened, sql) == [("clicks-eu.v1", 3, 3), ("orders", 3, 40)]
        assert rows(opened, "SELECT count(*) FROM orders") == [(40,)]

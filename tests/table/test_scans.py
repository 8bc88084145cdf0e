"""A query that reads one table in several places: each scan finds what its own filters ask for, whatever Spark shares.

Every answer is compared with that of plain rows in memory, with Spark's pushdown of filters to Python on and off.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import DataSourceReader

import maxbrod
from maxbrod.config import Config
from maxbrod.errors import UsageError
from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.query.options import ScopeOptions
from maxbrod.query.run import Query
from maxbrod.table import scans
from maxbrod.table.read.columns import USUAL, spark_schema
from maxbrod.table.read.scope import Scope
from maxbrod.table.scans import asks_the_clock
from maxbrod.table.source import ArchiveReader
from support.native_logs import data_batch
from support.table_archives import HOLDING, write
from support.table_archives import query as read_here

if TYPE_CHECKING:
    from pathlib import Path

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
QUERIES = {
    "scalar subqueries": """SELECT (SELECT count(*) FROM records WHERE topic = 'tz'),
        (SELECT count(*) FROM records WHERE topic = 'orders'), (SELECT max(offset) FROM records WHERE offset < 15)""",
    "one of them whole": """SELECT (SELECT count(*) FROM records WHERE topic = 'tz' AND offset = 3),
        (SELECT count(*) FROM records)""",
    "self-join": """SELECT a.offset, b.topic FROM records a JOIN records b ON a.offset = b.offset
        WHERE a.topic = 'tz' AND b.topic = 'orders'""",
    "outer self-join": """SELECT a.offset, b.offset FROM records a LEFT JOIN records b
        ON a.offset = b.offset AND b.offset < 3 WHERE a.topic = 'orders' AND a.offset BETWEEN 1 AND 5""",
    "union all": """SELECT topic, offset FROM records WHERE topic = 'tz' UNION ALL
        SELECT topic, offset FROM records WHERE topic = 'orders' AND offset > 35""",
    "a CTE twice": """WITH r AS (SELECT * FROM records WHERE partition = 3) SELECT x.topic, y.topic
        FROM (SELECT * FROM r WHERE topic = 'tz' AND offset = 2) x
        JOIN (SELECT * FROM r WHERE topic = 'orders' AND offset = 7) y""",
    "exists": """SELECT count(*) FROM records a WHERE topic = 'orders' AND EXISTS
        (SELECT 1 FROM records b WHERE b.topic = 'tz' AND b.offset = a.offset)""",
    "in and not in": """SELECT topic, count(*) FROM records r WHERE
        r.offset IN (SELECT offset FROM records WHERE topic = 'tz' AND partition = 3)
        AND r.offset NOT IN (SELECT offset FROM records WHERE offset < 2) GROUP BY topic""",
    "correlated": """SELECT a.offset, (SELECT count(*) FROM records b WHERE b.offset = a.offset AND b.topic = 'orders')
        FROM records a WHERE a.topic = 'tz' AND a.offset > 4""",
    "views and records": """SELECT count(*), (SELECT count(*) FROM records WHERE topic <> 'tz') FROM orders o
        JOIN tz t ON o.offset = t.offset WHERE o.offset < 5 AND t.offset > 1""",
    "times": """SELECT count(*) FROM records a JOIN records b ON a.offset = b.offset
        WHERE a.timestamp < timestamp_millis(1005) AND b.timestamp > timestamp_millis(1003)""",
    "the clock": "SELECT count(*) FROM records WHERE timestamp < now() AND timestamp > now() - INTERVAL 100 YEARS",
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics: orders with 40 records in 4 segments, and tz with 7 in one."""
    folder = tmp_path_factory.mktemp("scans") / "archive"
    write(folder, [data_batch(base, 10) for base in range(0, 40, 10)], limits=SegmentLimits(records_max=10))
    write(folder, [data_batch(0, 7)], run_id="run-2", topic="tz", topic_id="TZ", written_at=2)
    return folder


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    """One of its own, because of its settings and views, in which small queries are quick."""
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "UTC")
    own.conf.set("spark.sql.shuffle.partitions", "1")
    maxbrod.register(own)
    return own


def views(frame: Any) -> None:
    """`records` and both topics, all of one frame."""
    frame.createOrReplaceTempView("records")
    for topic in ("orders", "tz"):
        frame.where(f"topic = '{topic}'").createOrReplaceTempView(topic)


def ask(session: Any, sql: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, session.sql(sql).collect()), key=str)


@pytest.fixture(scope="module")
def truth(archive: Path, session: Any) -> dict[str, list[tuple[Any, ...]]]:
    """The answers of rows in memory."""
    rows = [tuple(row[name] for name in USUAL) for row in read_here(archive)]
    assert len(rows) == 47
    views(session.createDataFrame(rows, spark_schema(USUAL)))
    return {name: ask(session, sql) for name, sql in QUERIES.items()}


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_every_scan_of_a_registered_table_reads_what_its_own_filters_ask(
    archive: Path, session: Any, truth: dict[str, Any], pushdown: str
) -> None:
    session.conf.set(PUSHDOWN, pushdown)
    views(session.read.format("maxbrod").load(str(archive)))
    # Without pushdown Spark asks the source nothing, and a few are enough to show it.
    chosen = [*QUERIES] if pushdown == "true" else ["scalar subqueries", "self-join", "union all", "the clock"]
    assert {name: ask(session, QUERIES[name]) for name in chosen} == {name: truth[name] for name in chosen}


def test_every_scan_of_a_query_reads_what_its_own_filters_ask(
    archive: Path, spark: Any, truth: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HOLDING, -1)
    with Query(Config(archive=str(archive)), ScopeOptions(), session=spark) as opened:
        found = {name: opened.collect(opened.ask(sql)).table for name, sql in QUERIES.items()}
    # By position: columns may have one name.
    rows = {name: zip(*(column.to_pylist() for column in table.columns), strict=True) for name, table in found.items()}
    assert {name: sorted(each, key=str) for name, each in rows.items()} == truth


def test_every_scan_of_views_reads_what_its_own_filters_ask(archive: Path, session: Any, truth: dict[str, Any]) -> None:
    session.conf.set(PUSHDOWN, "true")
    names = maxbrod.views(session, archive)
    again = maxbrod.views(session, archive, prefix="again_")
    try:
        assert ask(session, QUERIES["views and records"]) == truth["views and records"]
        sql = "SELECT (SELECT count(*) FROM again_records), count(*) FROM tz a, again_tz b"
        assert ask(session, f"{sql} WHERE a.offset < 2 AND b.offset > 4") == [(47, 4)]
    finally:
        for name in (*names, *again):
            session.catalog.dropTempView(name)


def test_a_frame_that_is_used_again_and_cached_reads_all_of_it(archive: Path, session: Any) -> None:
    session.conf.set(PUSHDOWN, "true")
    frame = session.read.format("maxbrod").load(str(archive))
    few, late = frame.where("topic = 'tz'"), frame.where("topic = 'orders' and offset >= 30")
    assert (few.count(), frame.count(), late.count(), few.count()) == (7, 47, 10, 7)
    try:
        assert (few.cache().count(), frame.count(), few.join(late, "partition").count()) == (7, 47, 70)
        assert frame.cache().where("topic = 'orders'").count() == 40
    finally:
        few.unpersist()
        frame.unpersist()
    with ThreadPoolExecutor(4) as pool:
        counts = pool.map(lambda least: frame.where(f"offset >= {least}").count(), [0, 39, 20])
        assert list(counts) == [47, 1, 20]


def test_two_queries_of_one_stream_and_a_stream_beside_itself_share_nothing(
    archive: Path, session: Any, tmp_path: Path
) -> None:
    session.conf.set(PUSHDOWN, "true")
    stream = session.readStream.format("maxbrod").load(str(archive))
    few, late = stream.where("topic = 'tz'"), stream.where("topic = 'orders' and offset >= 30")
    chosen = {"few": few, "whole": stream, "both": few.union(late)}
    started = [
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start(str(tmp_path / name))
        for name, frame in chosen.items()
    ]
    for each in started:
        each.awaitTermination()
    counts = {name: session.read.parquet(str(tmp_path / name)).count() for name in chosen}
    assert counts == {"few": 7, "whole": 47, "both": 17}


def test_a_reader_takes_no_filters_and_holds_nothing_but_options() -> None:
    assert ArchiveReader.pushFilters is DataSourceReader.pushFilters


def test_scans_of_one_query_read_the_objects_that_one_of_them_needs(spark: Any, tmp_path: Path) -> None:
    batches = [data_batch(base, 5) for base in range(0, 100, 5)]
    rows = write(tmp_path / "archive", batches, limits=SegmentLimits(records_max=10))
    for number, row in enumerate(rows):
        if number not in {1, 5}:
            (tmp_path / "archive" / row.path).unlink()
    sql = """SELECT offset FROM orders WHERE offset = 57 UNION ALL
        SELECT offset FROM records WHERE offset = 12 AND topic = 'orders' UNION ALL
        SELECT offset FROM orders o WHERE o.offset IN (11)"""
    found = maxbrod.query(tmp_path / "archive", sql, session=spark)
    assert sorted(found.column(0).to_pylist()) == [11, 12, 57]


def test_what_sources_were_told_is_checked_against_the_plan_that_runs(
    archive: Path, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the optimizer, or the clock, had made another plan of the same query."""
    find_usage = scans.find_usage

    wrong = (Scope(end_offset=5), Scope(topics=frozenset({"tz"})))

    def misled(*arguments: Any) -> Any:
        return replace(find_usage(*arguments), scopes={"records": wrong})

    monkeypatch.setattr(scans, "find_usage", misled)
    monkeypatch.setattr(HOLDING, -1)
    with Query(Config(archive=str(archive)), ScopeOptions(), session=spark) as opened:
        for sql, count in {
            "SELECT * FROM records": 47,
            "SELECT * FROM records WHERE offset < 6": 12,
            "SELECT * FROM records WHERE offset < 5": 10,
        }.items():
            asked = opened.ask(sql)
            assert opened.collect(asked, form="json").table.num_rows == count
        opened.write(opened.ask("SELECT * FROM records WHERE offset > 1"), "parquet", str(tmp_path / "written"))
    assert spark.read.parquet(str(tmp_path / "written")).count() == 43


@pytest.mark.parametrize(("condition", "asks"), [("timestamp < now()", True), ("offset > 3", False)])
def test_a_write_whose_plan_cannot_be_looked_at_does_not_trust_the_clock(
    archive: Path, spark: Any, condition: str, asks: bool
) -> None:
    with Query(Config(archive=str(archive)), ScopeOptions(), session=spark) as opened:
        sql = f"SELECT offset FROM tz WHERE `offset` IN (SELECT offset FROM records WHERE {condition})"
        assert asks_the_clock(opened.ask(sql).frame) == asks


def test_the_trap_of_the_column_offset_has_a_way_out(archive: Path, spark: Any) -> None:
    with (
        Query(Config(archive=str(archive)), ScopeOptions(), session=spark) as opened,
        pytest.raises(UsageError) as raised,
    ):
        opened.ask("SELECT key FROM tz WHERE offset IN (1, 2)")
    assert "backticks" in str(raised.value.hint)

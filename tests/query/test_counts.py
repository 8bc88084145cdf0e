"""Plain counts are answered from the catalog, and never otherwise than Spark would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import Config
from maxbrod.errors import UsageError
from maxbrod.query import run as engine
from maxbrod.query.options import ScopeOptions
from maxbrod.query.run import Query, parse_count
from support.native_logs import data_batch
from support.table_archives import write
from support.table_queries import make

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = (
    "SELECT count(*) FROM records",
    "select COUNT( * ) as n\nfrom `clicks-eu.v1` ;",
    "SELECT count(1) FROM ORDERS",
    "SELECT topic, count(*) AS n FROM records GROUP BY topic",
    "SELECT topic, count(*) AS records FROM records GROUP BY topic ORDER BY topic",
    "SELECT count(*) AS n, topic FROM records GROUP BY ALL ORDER BY ALL",
    "SELECT partition AS p, topic, count(*) FROM records GROUP BY topic, partition",
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make(tmp_path_factory.mktemp("counts") / "archive"))


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(engine, "open_configured", refuse)


@pytest.mark.usefixtures("no_spark")
def test_a_plain_count_starts_no_spark(archive: str) -> None:
    with Query(Config(archive=archive), ScopeOptions()) as opened:
        assert [opened.answer(sql).table.to_pylist() for sql in PLAIN] == [
            [{"count(1)": 43}],
            [{"n": 3}],
            [{"count(1)": 40}],
            [{"topic": "clicks-eu.v1", "n": 3}, {"topic": "orders", "n": 40}],
            [{"topic": "clicks-eu.v1", "records": 3}, {"topic": "orders", "records": 40}],
            [{"n": 3, "topic": "clicks-eu.v1"}, {"n": 40, "topic": "orders"}],
            [{"p": 3, "topic": "clicks-eu.v1", "count(1)": 3}, {"p": 3, "topic": "orders", "count(1)": 40}],
        ]
        limited = opened.answer(PLAIN[3], limit=1)
        assert (limited.table.num_rows, limited.more) == (1, True)


@pytest.mark.usefixtures("no_spark")
def test_a_count_respects_the_scope_of_the_query(archive: str) -> None:
    with Query(Config(archive=archive), ScopeOptions(topics=("orders",))) as opened:
        assert opened.answer(PLAIN[0]).table.to_pylist() == [{"count(1)": 40}]


@pytest.mark.parametrize("sql", PLAIN)
@pytest.mark.parametrize("form", ["arrow", "text", "csv", "json"])
def test_the_catalog_answers_as_spark_does(archive: str, spark: Any, sql: str, form: str) -> None:
    with Query(Config(archive=archive), ScopeOptions(), session=spark) as opened:
        known, asked = opened.answer(sql, form=form), opened.collect(opened.ask(sql), form=form)
    assert known.types == asked.types
    assert known.table.schema.names == asked.table.schema.names
    assert known.table.schema.types == asked.table.schema.types
    assert sorted(known.table.to_pylist(), key=str) == sorted(asked.table.to_pylist(), key=str)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM records WHERE offset > 3",
        "SELECT count(value) FROM records",
        "SELECT count(*) FROM records, orders",
        "SELECT count(*) FROM records r",
        "SELECT count(*) FROM (SELECT 1)",
        "SELECT DISTINCT count(*) FROM records",
        "SELECT count(DISTINCT key) FROM records",
        "SELECT topic, count(*) FROM records",
        "SELECT count(*) FROM records GROUP BY topic",
        "SELECT topic, count(*) AS n FROM records GROUP BY topic ORDER BY n",
        "SELECT topic, count(*) FROM records GROUP BY topic ORDER BY topic DESC",
        "SELECT topic, count(*) FROM records GROUP BY topic, ",
        "SELECT topic, count(*) FROM records GROUP BY topic ORDER BY count",
        "SELECT topic AS partition, partition AS topic, count(*) FROM records GROUP BY ALL ORDER BY topic",
        "SELECT topic, count(*) FROM records GROUP BY 1",
        "SELECT topic, count(*) FROM records GROUP BY topic HAVING count(*) > 1",
        "SELECT topic, count(*) FROM records GROUP BY topic ORDER BY 2",
        "SELECT topic, topic, count(*) FROM records GROUP BY topic",
        "SELECT count(*), count(*) FROM records",
        "SELECT topic AS a, count(*) AS A FROM records GROUP BY topic",
        "SELECT count(*) AS select FROM records LIMIT 1",
        "SELECT topic FROM records GROUP BY topic",
        "SELECT TOPIC, count(*) FROM records GROUP BY TOPIC",
        "SELECT count(*) FROM a.records",
        "SELECT count(*) FROM records -- all",
        "SELECT count(*) FROM records; SELECT 1",
        "count(*)",
        "",
    ],
)
def test_every_other_query_is_left_to_spark(sql: str) -> None:
    assert parse_count(sql) is None


def test_what_the_catalog_does_not_know_exactly_is_left_to_spark(tmp_path: Path, spark: Any) -> None:
    write(tmp_path, [data_batch(0, 10)])
    with Query(Config(archive=str(tmp_path)), ScopeOptions(until="1970-01-01T00:00:01.004Z"), session=spark) as opened:
        assert opened._known(PLAIN[0], None, "arrow") is None
        assert opened.answer(PLAIN[0]).table.to_pylist() == [{"count(1)": 4}]
        with pytest.raises(UsageError, match="cannot be found"):
            opened.answer("SELECT count(*) FROM nothing")

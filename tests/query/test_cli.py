"""`maxbrod query`: answers for people and machines, mistakes in one line, nothing but the answer on standard output."""

from __future__ import annotations

import csv
import io
import json
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maxbrod.catalog.catalog import Catalog
from maxbrod.cli.main import run
from maxbrod.errors import EnvironmentMissingError
from maxbrod.layouts.foreign import ClusterFacts, ForeignTopic, Survey, WriteOptions
from maxbrod.layouts.registry import NATIVE, layout_of
from maxbrod.query.output import draw, sparkline
from maxbrod.storage.stores import open_storage
from support.archives import damage
from support.binlog_trees import OLD_MS, old_tree
from support.table_queries import make

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make(tmp_path_factory.mktemp("query") / "archive"))


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], spark: Any) -> Any:
    """Standard output; standard error must be silent where it ends well, and one line without Java where not."""

    def run_and_read(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        assert run(["query", *arguments]) == code
        found = capfd.readouterr()
        if not code:
            assert found.err == ""
            return found.out
        assert found.out == ""
        assert "Traceback" not in found.err
        assert "org.apache" not in found.err
        return found.err

    return run_and_read


CLICKS = "SELECT offset, key, value, headers, timestamp FROM `clicks-eu.v1` ORDER BY offset"


def test_the_answer_is_a_table_csv_json_or_parquet_and_bytes_are_told_apart(
    said: Any, archive: str, tmp_path: Path
) -> None:
    text = said(archive, CLICKS)
    assert "0xff00" in text
    assert "null" in text
    assert "3 rows" in text
    rows = list(csv.reader(io.StringIO(said(archive, CLICKS, "--output", "csv"))))
    assert rows[0] == ["offset", "key", "value", "headers", "timestamp"]
    assert [row[:4] for row in rows[2:]] == [["1", "", '{"n": 2, "who": "bob"}', ""], ["2", "", "0xff00", ""]]
    lines = [json.loads(line) for line in said(archive, CLICKS, "--output", "json").splitlines()]
    assert lines[2] == {
        "offset": 2,
        "key": "",
        "value": "0xff00",
        "headers": None,
        "timestamp": "1970-01-01T00:00:09.002Z",
    }
    document = json.loads(said("-a", archive, CLICKS, "--json", "--limit", "2"))
    assert (document["rows"], document["more"]) == (lines[:2], True)
    assert document["columns"][0] == {"name": "offset", "type": "bigint"}
    file = tmp_path / "answer.parquet"
    assert "3 rows" in said(archive, CLICKS, "--to", str(file))
    assert pq.read_table(file)["value"].to_pylist()[2] == b"\xff\x00"
    odd = "SELECT CAST(value AS STRING) AS text FROM `clicks-eu.v1` WHERE offset = 2"
    assert json.loads(said(archive, odd, "--output", "json")) == {"text": "\ufffd\x00"}
    assert "one already" in said(archive, CLICKS, "--to", str(file), code=2)
    said(archive, CLICKS, "--output", "json", "--to", f"{tmp_path}/folder/", "--limit", "2")
    written = [
        json.loads(line) for each in (tmp_path / "folder").glob("*.json") for line in each.read_text().splitlines()
    ]
    assert [row["offset"] for row in written] == [0, 1]


def test_a_table_that_is_cut_says_so(said: Any, archive: str) -> None:
    text = said(archive, "SELECT repeat('ä', 70) AS long FROM orders", "--limit", "7")
    assert "the first 7 rows of more" in text
    assert "longer than 60 letters" in text
    assert len([line for line in text.splitlines() if "ä" in line]) >= 7


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT\n  nope FROM orders", "line 2, column 3"),
        ("SELECT * FROM ordres", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT * FROM ordres", "did you mean orders?"),
        ("SELCT 1", "PARSE_SYNTAX_ERROR"),
        ("CREATE TABLE x AS SELECT 1", "only queries are run"),
        ("SELECT CAST(CAST(value AS STRING) AS INT) FROM orders", "CAST_INVALID_INPUT"),
    ],
)
def test_a_mistake_in_the_query_is_bad_usage_in_one_line(said: Any, archive: str, sql: str, message: str) -> None:
    text = said(archive, sql, code=2)
    assert message in text
    assert len(text.splitlines()) <= 2


def test_damage_fails_a_query_with_its_own_exit_code(said: Any, tmp_path: Path) -> None:
    archive = make(tmp_path / "archive")
    damaged = min(archive.rglob("*.log"))
    damage(damaged)
    assert damaged.name in said(str(archive), "SELECT count(value) FROM records", code=4)


@pytest.mark.parametrize("layout", [NATIVE, "kbak"])
def test_an_archive_without_records_answers_with_no_rows(said: Any, tmp_path: Path, layout: str) -> None:
    url = str(tmp_path / "archive")
    if layout == NATIVE:
        Catalog.create(open_storage(url))
    else:
        facts = ClusterFacts(topics={"orders": ForeignTopic(name="orders", partition_count=2)})
        survey = Survey(layout=layout, segments=())
        layout_of(layout).publish(open_storage(url), survey, (), WriteOptions(), facts)
    for sql in ("SELECT * FROM records", "SELECT partition, offset + 1 FROM records", "SELECT * FROM segments"):
        assert "0 rows" in said(url, sql)
    assert said(url, "SELECT partition FROM records", "--output", "csv").strip() == '"partition"'
    assert json.loads(said(url, "SELECT count(*) n FROM records WHERE offset > 3", "--json"))["rows"] == [{"n": 0}]
    said(url, "--histogram")
    said(url, "SELECT key, timestamp FROM records", "--output", "parquet", "--to", str(tmp_path / "rows.parquet"))
    assert pq.read_table(tmp_path / "rows.parquet").num_rows == 0


def test_records_over_time_are_a_line_for_each_topic(said: Any, archive: str, tmp_path: Path) -> None:
    text = said(archive, "--histogram")
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "█" in lines["orders"]
    assert lines["orders"].split()[-1] == "40"
    assert lines["clicks-eu.v1"].split()[-1] == "3"
    picture = tmp_path / "records.png"
    said(archive, "--histogram", "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    said(archive, "--histogram", "--plot", str(tmp_path / "records.svg"))
    drawn = (tmp_path / "records.svg").read_text()
    assert "<!-- Records by topic and time -->" in drawn
    assert "<!-- time (UTC) -->" in drawn
    assert "<!-- records in " in drawn


def test_rows_are_drawn(said: Any, archive: str, tmp_path: Path) -> None:
    picture = tmp_path / "offsets.svg"
    said(archive, "SELECT timestamp, offset FROM orders", "--plot", str(picture))
    drawn = picture.read_text()
    # Letters are drawn as shapes; each text is there as a comment.
    for text in ("SELECT timestamp, offset FROM orders", "timestamp (UTC)", "offset"):
        assert f"<!-- {text} -->" in drawn
    assert "nothing to draw" in said(archive, "SELECT topic FROM orders", "--plot", str(picture), code=2)


def test_an_archive_of_another_tool_is_asked_the_same(said: Any, tmp_path: Path) -> None:
    tree = old_tree(tmp_path / "tree")
    sql = "SELECT count(*) AS n, min(timestamp) AS t, (SELECT sum(records) FROM segments) AS s FROM orders"
    (row,) = [json.loads(line) for line in said(str(tree), sql, "--output", "json").splitlines()]
    assert (row["n"], row["s"]) == (30, 30)
    assert row["t"].startswith("2017-07-14")
    assert OLD_MS // 1000 == 1_500_000_000
    said(str(tree), "SELECT 1", "--topic", "nobody", code=2)


def test_the_query_comes_from_a_file_or_from_standard_input(
    said: Any, archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "query.sql"
    file.write_text("-- how many\nSELECT count(*) AS n FROM orders;\n")
    assert json.loads(said(archive, "--file", str(file), "--output", "json")) == {"n": 40}
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 7 AS n"))
    assert json.loads(said("-a", archive, "-", "--output", "json")) == {"n": 7}
    assert said(archive) == "", "standard input has no further statement"
    assert "one query" in said(archive, "--to", str(tmp_path / "out.csv"), code=2)
    assert "one query" in said(archive, "SELECT 1", "--file", str(file), code=2)


@pytest.mark.parametrize(
    ("counts", "line"),
    [([0, 1, 8, 1000], " ▁▁█"), ([], ""), ([0, 0], "  "), ([4, 4], "██"), ([1] * 120, "█" * 60)],
)
def test_a_line_shows_zero_as_nothing_and_one_as_something(counts: list[int], line: str) -> None:
    assert sparkline(counts) == line


def test_a_picture_without_matplotlib_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(EnvironmentMissingError) as caught:
        draw(pa.table({"x": [1], "y": [2]}), tmp_path / "x.png", title="x")
    assert "maxbrod[plot]" in str(caught.value.hint)


@pytest.mark.parametrize(
    "flags",
    [
        ["--output", "xml"],
        ["--json", "--output", "csv"],
        ["--to", "answer.txt"],
        ["--output", "table", "--to", "x"],
        ["--plot", "x.gif"],
        ["--histogram"],
        ["--value", "xml"],
        ["--since", "yesterday"],
        ["--isolation", "none"],
    ],
)
def test_flags_that_mean_nothing_are_refused_before_spark_starts(archive: str, flags: list[str]) -> None:
    with patch("maxbrod.query.run.open_configured", side_effect=AssertionError("Spark was started")):
        assert run(["query", archive, "SELECT 1", *flags]) == 2

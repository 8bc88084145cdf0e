"""The prompt of `maxbrod query`: one session for many statements, and Ctrl-C that costs no more than one of them."""

from __future__ import annotations

import io
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.cli.main import run
from maxbrod.config import Config
from maxbrod.query import prompt
from maxbrod.query.output import Output
from maxbrod.query.run import Query
from maxbrod.query.scope import QueryScope
from maxbrod.sandbox.waiting import wait_for
from table.test_query import make

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDLESS = "SELECT sum(r.id % 7 * o.offset) FROM range(1000000000000) r CROSS JOIN orders o"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make(tmp_path_factory.mktemp("prompt") / "archive"))


@pytest.fixture
def query(archive: str, spark: Any) -> Iterator[Query]:
    with Query(Config(archive=archive), QueryScope(), session=spark) as opened:
        yield opened


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> list[str]:
    """What the prompt makes of lines and keys."""
    found = iter(lines)

    def answer(_: str) -> str:
        line = next(found)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", answer)
    return list(prompt._typed())


def test_statements_may_have_several_lines_and_lines_several_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed(monkeypatch, "SELECT 1; SELECT", "2 -- two", ";", EOFError) == ["SELECT 1", "SELECT\n2 -- two"]


@pytest.mark.parametrize("word", ["exit", "quit;", "\\q"])
def test_words_leave_and_an_interrupt_discards_only_what_is_typed(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    assert typed(monkeypatch, "SELECT 1", KeyboardInterrupt, "SELECT 2;", word, "SELECT 3;") == ["SELECT 2"]


def test_without_a_terminal_statements_come_from_standard_input(
    archive: str, spark: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT count(*) AS n FROM orders;\nSELECT ';' AS s"))
    assert run(["query", archive, "--output", "csv"]) == 0
    assert capfd.readouterr().out.splitlines() == ['"n"', "40", '"s"', '";"']
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT * FROM nowhere;\nSELECT 1;"))
    assert run(["query", archive]) == 2
    found = capfd.readouterr()
    assert (found.out, "nowhere" in found.err) == ("", True)


def test_an_interrupt_cancels_the_running_statement_and_the_next_is_answered(
    query: Query, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = spark.sparkContext.statusTracker()

    def interrupt() -> None:
        wait_for("a running job", tracker.getActiveJobsIds, timeout_s=120)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        prompt._answer(query, Output(form="table"), ENDLESS)
        thread.join()
        prompt._answer(query, Output(form="table"), "SELECT count(*) AS n FROM orders")
        prompt._answer(query, Output(form="table"), "SELECT * FROM nowhere")
    finally:
        signal.signal(signal.SIGINT, before)
    found = capsys.readouterr()
    assert found.out.startswith("cancelled after ")
    assert "40" in found.out.split()
    assert "nowhere" in found.err


def test_the_prompt_completes_every_table_and_its_columns(query: Query) -> None:
    tables = query.tables()
    assert {"records", "orders", "clicks-eu.v1", "segments", "gaps", "runs", "groups"} == set(tables)
    assert "offset" in tables["orders"]
    assert "exit_code" in tables["runs"]

"""The prompt of `maxbrod query`: one session for many statements, and Ctrl-C that costs no more than one of them."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.cli.main import run
from maxbrod.config import Config
from maxbrod.query import prompt
from maxbrod.query import run as query_run
from maxbrod.query.options import ScopeOptions
from maxbrod.query.output import Output
from maxbrod.query.run import Query
from maxbrod.sandbox.process import wait_for
from maxbrod.work.jobs import tasks_running
from support.table_queries import make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Not endless, and without a join: in a product of two tables a task of Spark does not notice that it was cancelled, and
# the session is shared.
LONG = "SELECT count(*) FROM range(30000000000) WHERE id % 7 = 8"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make(tmp_path_factory.mktemp("prompt") / "archive"))


@pytest.fixture
def query(archive: str, spark: Any) -> Iterator[Query]:
    with Query(Config(archive=archive), ScopeOptions(), session=spark) as opened:
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
    def interrupt() -> None:
        wait_for("running tasks", lambda: tasks_running(spark), timeout_s=120)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        prompt._answer(query, Output(form="table"), LONG)
        thread.join()
        prompt._answer(query, Output(form="table"), "SELECT count(*) AS n FROM orders")
        prompt._answer(query, Output(form="table"), "SELECT * FROM nowhere")
    finally:
        signal.signal(signal.SIGINT, before)
    found = capsys.readouterr()
    assert found.out.startswith("cancelled after ")
    assert "40" in found.out.split()
    assert "nowhere" in found.err


@pytest.mark.usefixtures("spark")
def test_tasks_that_do_not_stop_cost_a_new_spark_and_not_the_next_answer(
    archive: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a session of the caller, as in the command. In this process it opens the one that is open anyway."""
    monkeypatch.setattr(query_run, "_ENDING_S", 0.0)
    with Query(Config(archive=archive), ScopeOptions()) as opened:
        opened.start()
        before = opened.spark
        monkeypatch.setattr("maxbrod.work.jobs.tasks_running", lambda session: 99 if session is before else 0)
        prompt._answer(opened, Output(form="table"), "SELECT max(offset) AS n FROM orders")
        assert opened.spark is not before
        again = opened.spark
        prompt._answer(opened, Output(form="table"), "SELECT max(offset) AS n FROM orders")
        assert opened.spark is again
    found = capsys.readouterr().out
    assert (found.count("starting Spark again"), found.split().count("39")) == (1, 2)


def test_running_tasks_are_counted_until_they_have_ended(spark: Any, tmp_path: Path) -> None:
    end = tmp_path / "end"

    def wait(batches: Any) -> Any:
        while not end.exists():
            time.sleep(0.05)
        yield from batches

    thread = threading.Thread(target=spark.range(0, 1, 1, 1).mapInArrow(wait, "id long").collect)
    thread.start()
    try:
        wait_for("a running task", lambda: tasks_running(spark) == 1, timeout_s=120)
    finally:
        end.touch()
        thread.join()
    wait_for("its end", lambda: not tasks_running(spark), timeout_s=120)


def test_the_prompt_completes_every_table_and_its_columns(query: Query) -> None:
    tables = query.tables()
    assert {"records", "orders", "clicks-eu.v1", "segments", "gaps", "runs", "groups"} == set(tables)
    assert "offset" in tables["orders"]
    assert "exit_code" in tables["runs"]

"""Statements end at semicolons, except within texts, names and comments; words are completed by what the line names."""

from __future__ import annotations

import pytest

from maxbrod.query.prompt import complete, split

TABLES = {"records": ("key", "offset"), "orders-eu": ("key", "offset"), "runs": ("run_id", "exit_code")}


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"], ""),
        ("SELECT 1\n", [], "SELECT 1\n"),
        ("SELECT ';' , \"a;b\", `c;d`; x", ["SELECT ';' , \"a;b\", `c;d`"], " x"),
        (r"SELECT 'it\'s;'; ", [r"SELECT 'it\'s;'"], " "),
        ("SELECT 1 -- not; here\n;", ["SELECT 1 -- not; here"], ""),
        ("SELECT /* a;b */ 1;", ["SELECT /* a;b */ 1"], ""),
        ("SELECT 'open; and", [], "SELECT 'open; and"),
        ("/* open; and", [], "/* open; and"),
        (" ; -- nothing\n;", [], ""),
    ],
)
def test_statements_end_at_semicolons_outside_of_quotes_and_comments(
    text: str, statements: list[str], rest: str
) -> None:
    assert split(text) == (statements, rest)


@pytest.mark.parametrize(
    ("word", "line", "words"),
    [
        ("rec", "SELECT * FROM rec", ["records"]),
        ("ord", "SELECT * FROM ord", ["`orders-eu`", "order"]),
        ("`ord", "SELECT * FROM `ord", ["`orders-eu`"]),
        ("exit", "SELECT exit FROM runs", ["exit_code"]),
        ("off", "SELECT off FROM runs", []),
        ("`orders-eu`.o", "SELECT `orders-eu`.o", ["`orders-eu`.offset"]),
        ("runs.r", "SELECT runs.r", ["runs.run_id"]),
        ("SEL", "SEL", ["SELECT"]),
    ],
)
def test_tables_columns_and_keywords_are_completed(word: str, line: str, words: list[str]) -> None:
    assert complete(word, line, TABLES) == words

"""`maxbrod help` prints pages, and every page that a message names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from maxbrod.cli.main import run
from maxbrod.setup.pages import find_page, list_pages

SOURCE = Path(__file__).parents[2] / "src"


def test_every_page_that_a_message_names_is_there() -> None:
    texts = [path.read_text() for path in SOURCE.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"'maxbrod help ([a-z/-]+)'", text)}
    assert {"storage", "cluster", "fail-over"} <= named
    for name in named:
        assert find_page(name).exists()


def test_no_message_names_a_file_that_only_a_checkout_has() -> None:
    found = [
        (path.name, line)
        for path in SOURCE.rglob("*.py")
        for line in path.read_text().splitlines()
        if "hint" in line and "docs/" in line
    ]
    assert found == []


def test_pages_are_listed_with_their_titles_and_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"^trouble +At 3 a\.m\.", listed, re.MULTILINE)
    *titles, last = listed.splitlines()
    assert len(titles) == len(list_pages())
    assert "maxbrod help tutorial" in last
    assert run(["help", "trouble"]) == 0
    assert "| exit code | meaning |" in capsys.readouterr().out


def test_a_mistyped_page_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "storag"]) == 2
    assert "did you mean storage?" in capsys.readouterr().err


def test_every_listed_page_is_found_by_its_name_also_if_another_ends_with_it() -> None:
    pages = list_pages()
    assert {name: find_page(name) for name in pages} == pages
    assert find_page("reference/python") != find_page("python")

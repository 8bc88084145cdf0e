"""The documents do not promise what is not there: links lead somewhere, and commands are commands."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from maxbrod.cli.main import command_line
from maxbrod.notices import KINDS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
COMMAND = re.compile(r"^ *\$ ((?:[A-Z_]+=\S+ )*)(maxbrod .*)$", re.MULTILINE)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading)).strip().lower() for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    found = [first or second for first, second in LINK.findall(FENCED.sub("", page.read_text()))]
    broken = []
    for link in found:
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def commands() -> list[tuple[str, str]]:
    """Every command line of the documents, with lines that a backslash continues."""
    joined = [(page, re.sub(r"\\\n\s*(?:> )?", " ", page.read_text())) for page in PAGES]
    return sorted({(named(page), found[1]) for page, text in joined for found in COMMAND.findall(text)})


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_of_a_page_is_one_that_maxbrod_takes(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    for end in ("|", "&&", ";", ">", "&", "2>"):
        words = words[: words.index(end)] if end in words else words
    parse(typer.main.get_command(command_line()), words[1:])


def parse(command: Any, arguments: list[str]) -> None:
    """Parse as typer does, without running anything. Raises what typer raises for a wrong command line."""
    if {"--help", "-h", "--version", "--install-completion"} & set(arguments):
        return
    with command.make_context("maxbrod", list(arguments)) as context:
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if hasattr(command, "commands") and rest:
            _, chosen, remaining = command.resolve_command(context, rest)
            parse(chosen, remaining)


def test_a_command_line_that_does_not_exist_is_found() -> None:
    for wrong in (["backup", "--no-such-flag"], ["no-such-verb"], ["sandbox", "no-such-verb"]):
        with pytest.raises(Exception, match=r"(?i)no such"):
            parse(typer.main.get_command(command_line()), wrong)


def proofs() -> list[tuple[str, str]]:
    """The files and tests that the page about reliability names."""
    text = (ROOT / "docs" / "reliability.md").read_text()
    return re.findall(r"`([\w/]+\.py)::(test_\w+)`", text)


def test_every_test_that_the_fault_matrix_names_exists() -> None:
    named_there = proofs()
    assert len(named_there) > 30
    missing = [
        f"{file}::{test}"
        for file, test in named_there
        if not (ROOT / "tests" / file).is_file() or f"\ndef {test}(" not in (ROOT / "tests" / file).read_text()
    ]
    assert missing == []


def test_every_row_of_the_fault_matrix_has_a_test() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]
    assert [row for row in rows if ".py::test_" not in row] == []


def kinds_in_code() -> set[str]:
    calls = (
        call
        for path in (ROOT / "src" / "maxbrod").rglob("*.py")
        if "Notice" in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
    )
    return {
        keyword.value.value
        for call in calls
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Notice"
        for keyword in call.keywords
        if keyword.arg == "kind" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
    }


def test_every_notice_is_explained_in_the_reference_and_in_the_runbook() -> None:
    found = kinds_in_code()
    assert len(found) > 10
    assert found - KINDS.keys() == set()
    runbook = (ROOT / "docs" / "trouble.md").read_text()
    table = runbook.partition("| notice | meaning |")[2].partition("\n\n")[0]
    explained = set(re.findall(r"^\| `([a-z ]+)`", table, re.MULTILINE))
    assert explained
    assert explained - KINDS.keys() == set()

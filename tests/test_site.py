"""The documents as a site: built strictly, complete, searchable, and without anything from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*?src(?:set)?=\"?(https?:)?//|<link[^>]*rel=\"?stylesheet[^>]*//"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_document_is_a_page_of_the_site_and_in_its_navigation(site: Path) -> None:
    front = (site / "index.html").read_text()
    pages = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if not (site / page).is_file()] == []
    assert [str(page) for page in pages if f'href="{page}"' not in front] == []


def test_the_navigation_names_every_document_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"(?:- |: )([\w/-]+\.md)$", text, re.MULTILINE)
    documents = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted({*named}), "a page is named twice"
    assert documents - {*named} == set(), "a page is only under More"


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loading = {page.name: found[0] for page in site.rglob("*.html") if (found := LOADED.search(page.read_text()))}
    assert loading == {}
    assert LOADED.search('<script src="https://example.com/a.js">') is not None


def test_the_search_of_the_site_finds_every_page(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= found

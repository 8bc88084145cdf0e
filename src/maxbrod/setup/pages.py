"""`maxbrod help`: the pages of the documentation, which the installed package brings along."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from maxbrod.errors import UsageError
from maxbrod.text import did_you_mean

_INSTALLED: Final = Path(__file__).parents[1] / "pages"
_CHECKOUT: Final = Path(__file__).parents[3] / "docs"


def list_pages() -> dict[str, Path]:
    """Return the pages by name, such as `storage` and `howto/topic-is-gone`."""
    folder = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    return {str(path.relative_to(folder).with_suffix("")): path for path in sorted(folder.rglob("*.md"))}


def title_of(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def find_page(name: str) -> Path:
    """Return the page of this name, or the only one whose last word it is. UsageError: there is none."""
    pages = list_pages()
    if name in pages:
        return pages[name]
    found = [page for known, page in pages.items() if known.rpartition("/")[2] == name]
    if len(found) == 1:
        return found[0]
    question = did_you_mean(name, [*pages, *(known.rpartition("/")[2] for known in pages)])
    raise UsageError(
        f"there is no page {name}" + (f"; {question}" if question else ""),
        hint="'maxbrod help' lists all pages, 'maxbrod VERB --help' has the options of a verb",
    )

"""Pages of the site that are not files in docs/: the README as its front page, and the changelog.

A hook of mkdocs. It also adds pages that the navigation does not name, so that none is out of reach.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT: Final = Path(__file__).parent.parent
_LINK: Final = re.compile(r"(\]\(|(?:src|srcset)=\")([^)\"\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    docs = Path(config.docs_dir)
    known = set(named(config.nav or []))
    others = sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))
    if missing := [page for page in others if page not in known]:
        config.nav = [*(config.nav or []), {"More": missing}]
    return config


def named(nav: Any) -> list[str]:  # noqa: ANN401 - lists and mappings of any depth
    """The files that a navigation names."""
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [page for child in children for page in named(child)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "index.md", content=_moved(ROOT / "README.md")))
    files.append(File.generated(config, "changelog.md", content=_moved(ROOT / "CHANGELOG.md")))
    return files


def _moved(path: Path) -> str:
    """A page of the repository's root as a page of docs/."""
    text = path.read_text(encoding="utf-8")
    # The license is a file of the repository, not a page.
    text = re.sub(r"\[([^]]+)\]\(LICENSE\)", r"\1", text)
    return _LINK.sub(lambda found: found[1] + _target(found[2].removeprefix("docs/")), text)


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs passes more
    return _LINK.sub(lambda found: found[1] + _target(found[2]), markdown)


def _target(link: str) -> str:
    return re.sub(r"^((?:\.\./)*?)(?:\.\./)?CHANGELOG\.md", r"\1changelog.md", link)

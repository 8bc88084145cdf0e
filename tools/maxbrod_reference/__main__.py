"""`python -m maxbrod_reference` (`make reference`) writes each generated file; a test fails when one is not current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from maxbrod_reference.code import pages
from maxbrod_reference.commands import cli_page, manual_page
from maxbrod_reference.configuration import FUNCTIONS, configuration_page, json_schema, keywords_module

_DOCS: Final = "docs/reference"


def generated() -> dict[str, str]:
    """Return the text of every generated file, by its path in the repository."""
    return {
        f"{_DOCS}/cli.md": cli_page(),
        f"{_DOCS}/configuration.md": configuration_page(),
        f"{_DOCS}/maxbrod.schema.json": json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n",
        **{f"{_DOCS}/{name}": text for name, text in pages().items()},
        f"{_DOCS}/maxbrod.1": manual_page(),
        **{f"src/maxbrod/{verb}/keywords.py": keywords_module(verb) for verb in FUNCTIONS},
    }


if __name__ == "__main__":
    for name, text in generated().items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")

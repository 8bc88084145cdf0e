"""Starts the programs of `support/programs`, each in a process of its own, with the modules of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def program(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", f"support.programs.{name}", *map(str, arguments)]


def environment(**variables: str) -> dict[str, str]:
    """This process's variables, with those given."""
    return {**os.environ, "PYTHONPATH": str(TESTS), **variables}

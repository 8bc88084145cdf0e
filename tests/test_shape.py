"""The shape of the tree: names that mean one thing, files and functions that can be read at once."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = [path for folder in ("src", "bench", "tools") for path in sorted((ROOT / folder).rglob("*.py"))]
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
TWICE = {
    "Failure": "a word of kafka-replicator's state machine",
    "Process": "a word of kafka-replicator's state machine",
    "Segment": "a word of kafka-replicator's state machine",
}
"""Class names that two modules may have, and why."""
NOUNS = {"listing", "mapping", "planning", "sharing", "staging", "tiling"}
"""Module names that end like a verb and are none."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name_of(path))
    assert {name: found for name, found in homes.items() if len(found) > 1 and name not in TWICE} == {}


def test_a_module_is_named_after_a_thing() -> None:
    gerunds = [name_of(path) for path in SOURCES if path.stem.endswith("ing") and "_" not in path.stem]
    assert [name for name in gerunds if Path(name).stem not in NOUNS] == []


def test_a_file_can_be_read_at_once() -> None:
    lengths = {name_of(path): path.read_text(encoding="utf-8").count("\n") for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX} == {}


def test_a_function_can_be_read_at_once() -> None:
    """Kernels are one long loop, because a call more would cost speed."""
    functions = [
        (f"{name_of(path)}:{node.name}", node.end_lineno - node.lineno + 1)
        for path, tree in TREES.items()
        if not path.name.endswith("kernels.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    ]
    assert {name: lines for name, lines in functions if lines > FUNCTION_LINES_MAX} == {}


def test_what_tests_share_is_in_one_folder() -> None:
    """A test module imports no other one, so that it can be moved, split and removed."""
    tests = Path(__file__).parent
    modules = [path for path in sorted(tests.rglob("*.py")) if "support" not in path.relative_to(tests).parts]
    strays = [name_of(path) for path in modules if not path.name.startswith(("test_", "conftest", "__init__"))]
    borrowed = [
        f"{name_of(path)}: {node.module}"
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2].startswith("test_")
    ]
    assert (strays, borrowed) == ([], [])

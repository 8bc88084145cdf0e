"""A command that only looks soon gives up what does not answer; one that works is patient."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest

from maxbrod.cli.main import run
from maxbrod.errors import RefusedError
from maxbrod.storage import stores

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.config import StorageConfig

LOOKS = [
    ["ls"],
    ["show", "orders"],
    ["state"],
    ["status"],
    ["check"],
    ["hold", "list"],
    ["gc"],
    ["prune", "--older-than", "1d"],
    ["groups", "plan", "--bootstrap", "nobody:1"],
    ["restore", "--dry-run", "--bootstrap", "nobody:1"],
    ["compact", "--dry-run"],
    ["replicate", "status", "--bootstrap", "nobody:1"],
]
WORKS = [
    ["check", "--deep"],
    ["check", "--sample", "5%"],
    ["gc", "--delete"],
    ["prune", "--older-than", "1d", "--apply"],
    ["compact"],
    ["compare", "--bootstrap", "nobody:1"],
    ["groups", "apply", "--bootstrap", "nobody:1"],
]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each command would wait for its store, in seconds."""
    found: list[float] = []

    def opened(_url: str, storage: StorageConfig) -> NoReturn:
        found.append(storage.deadline_s)
        raise RefusedError("seen")

    monkeypatch.setattr(stores, "_open_alone", opened)
    return found


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_a_look_gives_up_after_ten_seconds_unless_it_is_told_to_wait(
    words: list[str], waits: list[float], tmp_path: Path
) -> None:
    run([*words, "--archive", str(tmp_path)])
    assert waits == [10.0]
    run([*words, "--archive", str(tmp_path), "--patience", "70s"])
    assert waits == [10.0, 70.0]


@pytest.mark.parametrize("words", WORKS, ids=" ".join)
def test_work_waits_for_minutes(words: list[str], waits: list[float], tmp_path: Path) -> None:
    run([*words, "--archive", str(tmp_path)])
    assert waits == [180.0]


def test_a_file_that_says_how_long_to_wait_is_obeyed(waits: list[float], tmp_path: Path) -> None:
    (tmp_path / "maxbrod.yaml").write_text("storage: {deadline_s: 33}\n")
    run(["ls", "-a", str(tmp_path), "-c", str(tmp_path / "maxbrod.yaml")])
    assert waits == [33.0]

"""What is loaded is excluded from garbage collection once, and again only after more was loaded."""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from maxbrod.work import worker_garbage as settling

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The calls to the garbage collector, in a worker that has not settled yet."""
    calls: list[str] = []
    settling._freeze.cache_clear()
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    yield calls
    settling._freeze.cache_clear()


def test_a_worker_settles_after_its_first_task_and_after_one_that_loads_more(
    freezes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settling.settle()
    settling.settle()
    assert freezes == ["collect", "freeze"]
    monkeypatch.setitem(sys.modules, "loaded_by_the_second_task", ModuleType("loaded_by_the_second_task"))
    settling.settle()
    assert freezes == ["collect", "freeze"] * 2


def test_a_task_settles_when_its_last_row_has_left(freezes: list[str]) -> None:
    def doubled(batches: Iterator[int]) -> Iterator[int]:
        for each in batches:
            assert not freezes
            yield 2 * each

    assert list(settling.settled(doubled, iter([1, 2]))) == [2, 4]
    assert freezes == ["collect", "freeze"]

"""Runs tasks in this process, one after another, whatever the engine: what is left out is Spark, not the pickling."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from maxbrod.work.executor import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def run_here(task: Any, context: Any, tasks: Sequence[Sequence[Any]], **_: Any) -> list[Any]:
    """As `Executor.run` does it."""
    copies = [pickle.loads(pickle.dumps((context, tuple(items)))) for items in tasks]
    return [outcome for own, items in copies for outcome in task(own, items)]


class Here:
    """An executor whose `run` can be exchanged."""

    parallelism: ClassVar = 2
    is_here: ClassVar = True
    in_process: ClassVar = False

    def __init__(self, run: Callable[..., list[Any]] = run_here) -> None:
        self.run = run


@contextmanager
def without_spark(run: Callable[..., list[Any]] = run_here) -> Iterator[None]:
    """Within the block, all executors run tasks by `run(task, context, tasks, **options)`."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        stay_without_spark(monkeypatch, run)
        yield


def stay_without_spark(monkeypatch: pytest.MonkeyPatch, run: Callable[..., list[Any]] = run_here) -> None:
    """The same until the test ends."""
    monkeypatch.setattr(Workers, "for_bytes", lambda *_: Here(run))
    monkeypatch.setattr(Workers, "parallelism", Here.parallelism)
    monkeypatch.setattr(Workers, "try_cluster", lambda _: None)

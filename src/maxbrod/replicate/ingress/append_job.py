"""Appending on Spark: sends items to the workers as JSON, and returns how far each partition has come."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from maxbrod.replicate.ingress.append_items import Appended, AppendItem, AppendSettings
from maxbrod.replicate.ingress.append_task import run_append_task
from maxbrod.work.jobs import run_tasks

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from maxbrod.work.session import Session


@cache
def _items() -> TypeAdapter[tuple[AppendItem, ...]]:
    return TypeAdapter(tuple[AppendItem, ...])


@cache
def _answers() -> TypeAdapter[list[Appended]]:
    return TypeAdapter(list[Appended])


def run_append_job(
    session: Session, settings: AppendSettings, tasks: Sequence[Sequence[AppendItem]], *, stop: threading.Event | None
) -> list[Appended]:
    """The outcome of every item of every task. A task that Spark repeats fences its earlier attempt.

    UnavailableError: `stop` was set before the tasks had finished.
    """
    payloads = [_items().dump_json(tuple(task)).decode() for task in tasks]
    name = f"append-{settings.link}"
    answers = run_tasks(session, partial(work, settings), payloads, name=name, stop=stop)
    return [each for answer in answers for each in _answers().validate_json(answer)]


def work(settings: AppendSettings, payload: str) -> str:
    """What a worker does with one task: JSON in, JSON out."""
    return _answers().dump_json(run_append_task(settings, _items().validate_json(payload))).decode()

"""Runs Spark jobs in this process: what is left out is the session, not the encoding of payloads and answers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def run_tasks_here(_: object, function: Callable[[str], str], payloads: Sequence[str], **more: Any) -> list[str]:
    """In place of `maxbrod.work.jobs.run_tasks`: one task after another, text in, text out."""
    return [function(payload) for payload in payloads]


@contextmanager
def no_session(*_: object, **more: Any) -> Iterator[None]:
    """In place of `maxbrod.work.session.open_configured`."""
    yield None

"""Runs comparisons in this process, without Spark."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from maxbrod.compare import job
from maxbrod.compare import run as engine
from support.sparkless import no_session, run_tasks_here

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def without_spark() -> Iterator[None]:
    with (
        patch.object(job, "run_tasks", run_tasks_here),
        patch.object(engine, "open_configured", no_session),
        patch.object(engine, "parallelism_of", lambda *_: 2),
    ):
        yield

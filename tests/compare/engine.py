"""Runs comparisons in this process, without Spark: the session is the only thing that is left out."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from maxbrod.compare import run as engine
from maxbrod.compare.job import _differences, _digest, _digested
from maxbrod.compare.plan.differences import Difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maxbrod.compare.items import CompareItem, CompareSettings, Digested, SuspectItem


def digest_here(
    _: object, settings: CompareSettings, tasks: Sequence[Sequence[CompareItem]], **more: Any
) -> list[Digested]:
    """What Spark does with tasks, one after another: text in, text out."""
    answers = [_digest(settings, json.dumps([asdict(item) for item in task])) for task in tasks]
    return [_digested(values) for answer in answers for values in json.loads(answer)]


def differences_here(
    _: object, settings: CompareSettings, items: Sequence[SuspectItem], **more: Any
) -> list[Difference]:
    answers = [_differences(settings, json.dumps(asdict(item))) for item in items]
    return [Difference(**values) for answer in answers for values in json.loads(answer)]


@contextmanager
def without_spark() -> Iterator[None]:
    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield None

    with (
        patch.object(engine, "run_digest_job", digest_here),
        patch.object(engine, "run_difference_job", differences_here),
        patch.object(engine, "open_configured", nothing),
        patch.object(engine, "parallelism_of", lambda *_: 2),
    ):
        yield

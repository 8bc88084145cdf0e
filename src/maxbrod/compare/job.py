"""The jobs of a comparison: parts out to the workers, digests back; then suspects out, differences back. As JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from maxbrod.batch.digest import Digest
from maxbrod.compare.items import CompareItem, Digested, SuspectItem
from maxbrod.compare.plan.differences import Difference
from maxbrod.compare.plan.parts import Side
from maxbrod.engine.jobs import run_tasks
from maxbrod.layouts.travelling import decode_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from maxbrod.compare.items import CompareSettings


def run_digest_job(
    session: SparkSession,
    settings: CompareSettings,
    tasks: Sequence[Sequence[CompareItem]],
    *,
    name: str,
    on_done: Callable[[int], None] | None = None,
) -> list[Digested]:
    """Of every part of every task."""
    payloads = [json.dumps([asdict(item) for item in task]) for task in tasks]
    answers = run_tasks(session, partial(_digest, settings), payloads, name=name, on_done=on_done)
    return [_digested(values) for answer in answers for values in json.loads(answer)]


def run_difference_job(
    session: SparkSession, settings: CompareSettings, items: Sequence[SuspectItem], *, name: str
) -> list[Difference]:
    """The first differences of every item, in their order."""
    payloads = [json.dumps(asdict(item)) for item in items]
    answers = run_tasks(session, partial(_differences, settings), payloads, name=name)
    return [Difference(**values) for answer in answers for values in json.loads(answer)]


def _digest(settings: CompareSettings, payload: str) -> str:
    # numba, which the driver needs for nothing.
    from maxbrod.compare.task import digest_parts  # noqa: PLC0415

    return json.dumps([asdict(each) for each in digest_parts(settings, [_item(each) for each in json.loads(payload)])])


def _differences(settings: CompareSettings, payload: str) -> str:
    from maxbrod.compare.task import find_differences  # noqa: PLC0415 - as above

    values = json.loads(payload)
    suspect = SuspectItem(**{**values, "source": _item(values["source"]), "target": _item(values["target"])})
    return json.dumps([asdict(each) for each in find_differences(settings, suspect)])


def _item(values: dict[str, Any]) -> CompareItem:
    slices = tuple(decode_slice(each) for each in values["slices"])
    return CompareItem(**{**values, "side": Side(values["side"]), "slices": slices})


def _digested(values: dict[str, Any]) -> Digested:
    fields = values["digest"]
    digest = Digest(records=fields["records"], sequence=tuple(fields["sequence"]), total=tuple(fields["total"]))
    return Digested(**{**values, "digest": digest})

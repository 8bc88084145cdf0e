"""The jobs of a comparison: parts to digests, then suspects to differences. All travel as JSON."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter

from maxbrod.compare.items import CompactedItem, CompareItem, CompareSettings, Digested, Settled, SuspectItem
from maxbrod.compare.plan.differences import Difference
from maxbrod.work.jobs import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession


_ITEMS: Final = TypeAdapter(list[CompareItem])
_DIGESTS: Final = TypeAdapter(list[Digested])
_SUSPECT: Final = TypeAdapter(SuspectItem)
_COMPACTED: Final = TypeAdapter(CompactedItem)
_SETTLED: Final = TypeAdapter(Settled)
_DIFFERENCES: Final = TypeAdapter(list[Difference])


def run_digest_job(
    session: SparkSession,
    settings: CompareSettings,
    tasks: Sequence[list[CompareItem]],
    *,
    name: str,
    on_done: Callable[[int], None] | None = None,
) -> list[Digested]:
    """The digest of every part of every task."""
    payloads = [_ITEMS.dump_json(task).decode() for task in tasks]
    answers = run_tasks(session, partial(_digest, settings), payloads, name=name, on_done=on_done)
    return [each for answer in answers for each in _DIGESTS.validate_json(answer)]


def run_difference_job(
    session: SparkSession, settings: CompareSettings, items: Sequence[SuspectItem], *, name: str
) -> list[Difference]:
    """The first differences of every item, in order."""
    payloads = [_SUSPECT.dump_json(item).decode() for item in items]
    answers = run_tasks(session, partial(_differences, settings), payloads, name=name)
    return [each for answer in answers for each in _DIFFERENCES.validate_json(answer)]


def run_compacted_job(
    session: SparkSession, settings: CompareSettings, items: Sequence[CompactedItem], *, name: str
) -> list[Settled]:
    """What compaction explains of each item."""
    payloads = [_COMPACTED.dump_json(item).decode() for item in items]
    answers = run_tasks(session, partial(_settle, settings), payloads, name=name)
    return [_SETTLED.validate_json(answer) for answer in answers]


def _digest(settings: CompareSettings, payload: str) -> str:
    # Loads numba, which the driver does not need.
    from maxbrod.compare.task import digest_parts  # noqa: PLC0415

    return _DIGESTS.dump_json(digest_parts(settings, _ITEMS.validate_json(payload))).decode()


def _differences(settings: CompareSettings, payload: str) -> str:
    from maxbrod.compare.task import find_differences  # noqa: PLC0415 - as above

    return _DIFFERENCES.dump_json(find_differences(settings, _SUSPECT.validate_json(payload))).decode()


def _settle(settings: CompareSettings, payload: str) -> str:
    from maxbrod.compare.compaction import settle  # noqa: PLC0415 - as above

    return _SETTLED.dump_json(settle(settings, _COMPACTED.validate_json(payload))).decode()

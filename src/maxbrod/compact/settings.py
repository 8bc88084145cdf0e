"""The limits of each topic, from the options."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import ValidationError

from maxbrod.archive.selection import select_topics
from maxbrod.compact.options import CompactOptions, TopicLimits
from maxbrod.config import complaints, lay_over
from maxbrod.errors import UsageError, naming
from maxbrod.layouts.compaction_limits import CompactionLimits
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


Item = TypeVar("Item")
_TASKS_PER_CORE: Final = 4
_TASK_BYTES: Final = 256 << 20
"""A task of less is worth its cost only while cores have nothing to do. Each costs Spark 10 to 30 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    limits: CompactionLimits
    parallelism: int | None


def settings_of(options: CompactOptions, topics: Iterable[str]) -> dict[str, TopicSettings]:
    """The settings of each topic. UsageError: a section or a limit is wrong, also one that no topic uses now."""
    names = sorted(set(topics))
    base = TopicLimits(**{field.name: getattr(options, field.name) for field in fields(TopicLimits)})
    found = dict.fromkeys(names, _settings(base))
    for pattern, section in reversed(options.per_topic.items()):
        with naming(f"compact.per_topic.{pattern}"):
            settings = _settings(_laid_over(base, section))
        # A pattern may match topics that come later.
        chosen = select_topics(dict.fromkeys(names, False), [pattern], (), internal=True).chosen
        found |= dict.fromkeys(chosen, settings)
    return found


def _laid_over(base: TopicLimits, section: dict[str, object]) -> TopicLimits:
    try:
        return lay_over(base, section)
    except ValidationError as error:
        raise UsageError(f"the settings are wrong: {complaints(error, TopicLimits)}") from None


def _settings(limits: TopicLimits) -> TopicSettings:
    return TopicSettings(
        limits=CompactionLimits(
            level_min=limits.min_level,
            level_max=limits.max_level,
            age_ms_min=round(limits.min_segment_age * 1000),
            segments_min=limits.min_segment_count,
            bytes_min=limits.min_segment_size,
            segments_max=limits.max_segment_count,
            bytes_max=limits.max_segment_size,
            delete=limits.delete,
            step_over=limits.step_over,
        ),
        parallelism=limits.parallelism,
    )


def tasks_of(
    items: Iterable[tuple[str, int, Item]], settings: Mapping[str, TopicSettings], parallelism: int
) -> list[list[Item]]:
    """Spread items, each with its topic and size, over tasks.

    Those of a topic share as many tasks as its setting allows to run at once, all others one to four for each core.
    """
    pools: dict[tuple[str, int] | None, list[tuple[int, Item]]] = {}
    for topic, size, item in items:
        most = settings[topic].parallelism
        pools.setdefault(None if most is None else (topic, most), []).append((size, item))
    return [
        task
        for pool, sized in pools.items()
        for task in spread(sized, _task_count(sized, parallelism) if pool is None else pool[1])
    ]


def _task_count(sized: Sequence[tuple[int, object]], parallelism: int) -> int:
    large = sum(size for size, _ in sized) // _TASK_BYTES
    return min(max(large, parallelism), _TASKS_PER_CORE * parallelism)

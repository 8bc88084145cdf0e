"""The generations of compacted topics as `ls` and `show` report them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.archive.archive import AnyCatalog


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSummary:
    """One generation. Times are milliseconds."""

    number: int
    stage: str
    """`building`, `active`, `retired` or `dropped`."""
    began_at: int
    caught_up_at: int | None
    activated_at: int | None
    ended_at: int | None
    why: str | None
    """Why it was dropped."""
    targets: Mapping[int, int]
    """By partition: the offsets below are read afresh."""
    log_ends: Mapping[int, int]
    """By partition: where the log ended when the generation was found complete."""
    read: Mapping[int, int]
    """For a generation under construction, by partition: the offsets below have been read."""


def summarise_generations(catalog: AnyCatalog) -> dict[str, tuple[GenerationSummary, ...]]:
    """By topic id."""
    topics = catalog.generations()
    building = any(topic.building is not None for topic in topics.values())
    read: dict[str, dict[int, int]] = {}
    for partition, held in (catalog.building_positions() if building else {}).items():
        read.setdefault(partition.topic_id, {})[partition.partition] = held.end_offset
    return {
        topic_id: tuple(
            GenerationSummary(
                number=generation.number,
                stage=str(generation.stage),
                began_at=generation.began_at,
                caught_up_at=generation.caught_up_at,
                activated_at=generation.activated_at,
                ended_at=generation.ended_at,
                why=generation.why,
                targets=generation.targets,
                log_ends=generation.log_ends,
                read=read.get(topic_id, {}) if generation is topic.building else {},
            )
            for generation in topic.generations
        )
        for topic_id, topic in topics.items()
    }

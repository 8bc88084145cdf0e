"""Generations under construction that have lost an object: they are dropped, and the active ones stay.

Their rows cannot become gaps: a generation with such gaps might replace records by nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maxbrod.catalog.generations import GenerationChanges, encode_generations
from maxbrod.catalog.schema import Kind
from maxbrod.errors import RefusedError
from maxbrod.model import now_ms

if TYPE_CHECKING:
    from collections.abc import Collection

    from maxbrod.catalog.catalog import Catalog
    from maxbrod.notices import Notice

_WHY = "objects of it are lost or damaged"


def as_unfinished(notice: Notice) -> Notice:
    """A notice of a lost object, if only a generation under construction needs it."""
    return replace(
        notice,
        message=f"{notice.message} (needed only by a generation under construction)",
        hint="that generation is dropped, the active one stays, and the next backup begins another",
    )


def drop_generations(catalog: Catalog, topic_ids: Collection[str], run_id: str) -> GenerationChanges:
    """The change that drops what these topics have under construction, on the version that the catalog stands at.

    RefusedError: a generation has become active, or was dropped, since the objects were looked for.
    """
    if not topic_ids:
        return GenerationChanges()
    at, known = now_ms(), catalog.generations()
    topics = [known[each] for each in sorted(topic_ids) if each in known and known[each].building is not None]
    if len(topics) < len(topic_ids):
        raise RefusedError(
            "a backup has completed or dropped a generation meanwhile",
            operation="repair",
            hint="nothing was changed; run the repair again",
        )
    dropped = [topic.without_building(at, _WHY) for topic in topics]
    return GenerationChanges().plus(
        added=[encode_generations(dropped, run_id=run_id, written_at=at)],
        removed=[catalog.generation_rows(topic_ids, kind=Kind.GENERATIONS), catalog.generation_rows(topic_ids)],
    )

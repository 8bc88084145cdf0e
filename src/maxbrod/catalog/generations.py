"""Generations of compacted topics: the log of a topic read afresh, and which reading the archive answers from.

A generation under construction is rows of kind `building`, which no query of the archive returns. When it is complete,
one commit gives those rows their own kind and retires the rows that they replace. A generation reads afresh only the
offsets below its *targets*, where the archive ended when it began: what is archived later belongs to both.

A row of kind `generations` has all generations of one topic, with their states. Pure: `Catalog.commit` writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Final

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from maxbrod.catalog.replaced import not_understood, with_columns, with_own_kind
from maxbrod.catalog.rows import Gap, Segment, encode_rows
from maxbrod.catalog.schema import SCHEMA, Kind

ENDED_KEPT: Final = 24
"""Generations that were retired or dropped and are still listed: two years of months."""


class GenerationStage(StrEnum):
    """The state of a generation. A topic has one active generation at all times, and at most one that is building."""

    BUILDING = "building"
    ACTIVE = "active"
    RETIRED = "retired"
    DROPPED = "dropped"
    """Given up before it was complete; its rows are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One reading of a topic's log. Times are milliseconds since 1970."""

    number: int
    stage: GenerationStage
    began_at: int
    targets: Mapping[int, int] = field(default_factory=dict)
    """By partition: offsets below are read afresh. Those of other partitions were all archived since it began."""
    caught_up_at: int | None = None
    """The time at which the last offset below the targets had been read."""
    activated_at: int | None = None
    log_ends: Mapping[int, int] = field(default_factory=dict)
    """By partition: where the log ended when the generation became active; everything before was archived."""
    ended_at: int | None = None
    """The time at which it was retired or dropped."""
    why: str | None = None
    """The reason why it was dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGenerations:
    """The generations of one incarnation of a topic, by number."""

    topic: str
    topic_id: str
    generations: tuple[Generation, ...]

    @property
    def active(self) -> Generation | None:
        return self._last(GenerationStage.ACTIVE)

    @property
    def building(self) -> Generation | None:
        return self._last(GenerationStage.BUILDING)

    @property
    def dropped(self) -> Generation | None:
        """The last one that was given up."""
        return self._last(GenerationStage.DROPPED)

    @property
    def next_number(self) -> int:
        return max((generation.number for generation in self.generations), default=0) + 1

    def _last(self, stage: GenerationStage) -> Generation | None:
        return next((generation for generation in reversed(self.generations) if generation.stage is stage), None)

    def with_generation(self, changed: Generation) -> TopicGenerations:
        """With one added or changed. Of the ended ones, the oldest are left out."""
        others = [generation for generation in self.generations if generation.number != changed.number]
        ordered = sorted([*others, changed], key=lambda generation: generation.number)
        ended = [
            generation.number
            for generation in ordered
            if generation.stage in {GenerationStage.RETIRED, GenerationStage.DROPPED}
        ]
        gone = set(ended[: max(len(ended) - ENDED_KEPT, 0)])
        return replace(self, generations=tuple(generation for generation in ordered if generation.number not in gone))

    def activated(self, now_ms: int, log_ends: Mapping[int, int]) -> TopicGenerations:
        """With the building generation active and the active one retired."""
        found, before = self, self.active
        assert self.building is not None  # noqa: S101 - only a generation that was built becomes active
        if before is not None:
            found = found.with_generation(replace(before, stage=GenerationStage.RETIRED, ended_at=now_ms))
        new = replace(self.building, stage=GenerationStage.ACTIVE, activated_at=now_ms, log_ends=dict(log_ends))
        return found.with_generation(new)

    def without_building(self, now_ms: int, why: str) -> TopicGenerations:
        """With the building generation dropped."""
        assert self.building is not None  # noqa: S101 - the caller has it
        return self.with_generation(replace(self.building, stage=GenerationStage.DROPPED, ended_at=now_ms, why=why))


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChanges:
    """The changes of a commit to generations: rows of kind building and generations, and active ones made of them."""

    added: pa.Table = field(default_factory=SCHEMA.empty_table)
    removed: pa.Table = field(default_factory=SCHEMA.empty_table)

    def __bool__(self) -> bool:
        return bool(self.added.num_rows or self.removed.num_rows)

    def plus(self, *, added: Iterable[pa.Table] = (), removed: Iterable[pa.Table] = ()) -> GenerationChanges:
        return GenerationChanges(
            added=pa.concat_tables([self.added, *added]), removed=pa.concat_tables([self.removed, *removed])
        )


def as_building(rows: Sequence[Segment | Gap], number: int) -> pa.Table:
    """Rows of kind data and gap as rows of a generation under construction."""
    table = encode_rows(rows)
    details = [json.dumps({"generation": number, "kind": kind}, sort_keys=True) for kind in table["kind"].to_pylist()]
    return with_columns(table, kind=[str(Kind.BUILDING)] * table.num_rows, details=details)


def as_active(building: pa.Table) -> pa.Table:
    """Rows of kind building with their own kind."""
    complaint = "a row of a generation under construction lacks its kind or its generation"
    return with_own_kind(building, "generation", complaint)


def encode_generations(topics: Iterable[TopicGenerations], *, run_id: str, written_at: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "kind": str(Kind.GENERATIONS),
                "topic": topic.topic,
                "topic_id": topic.topic_id,
                "run_id": run_id,
                "written_at": written_at,
                "details": json.dumps({"generations": list(map(_encode, topic.generations))}, sort_keys=True),
            }
            for topic in topics
        ],
        schema=SCHEMA,
    )


def _encode(generation: Generation) -> dict[str, Any]:
    """JSON has no integer keys."""
    pairs = {name: sorted(map(list, getattr(generation, name).items())) for name in ("targets", "log_ends")}
    return asdict(generation) | pairs


def decode_generations(table: pa.Table) -> dict[str, TopicGenerations]:
    """By topic id. UnsupportedFormatError: the details are not those of generations."""
    found: dict[str, TopicGenerations] = {}
    for row in table.select(["topic", "topic_id", "details"]).to_pylist():
        try:
            details = _Details.model_validate_json(row["details"] or "").generations
        except ValidationError as error:
            complaint = f"the generations of topic {row['topic']!a} are invalid"
            raise not_understood(complaint, row["details"]) from error
        generations = (Generation(**dict(generation)) for generation in details)
        found[row["topic_id"]] = TopicGenerations(
            topic=row["topic"],
            topic_id=row["topic_id"],
            generations=tuple(sorted(generations, key=lambda generation: generation.number)),
        )
    return found


def _pairs(value: object) -> object:
    """[partition, offset] pairs as a mapping."""
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return dict(value)
    raise ValueError("is not a list of pairs")


_Offsets = Annotated[dict[NonNegativeInt, NonNegativeInt], BeforeValidator(_pairs)]


class _GenerationDetails(BaseModel):
    """The fields of a generation, all of which must be there."""

    model_config = ConfigDict(strict=True, extra="ignore")

    number: PositiveInt
    stage: GenerationStage
    began_at: int
    targets: _Offsets
    caught_up_at: int | None
    activated_at: int | None
    log_ends: _Offsets
    ended_at: int | None
    why: str | None


class _Details(BaseModel):
    generations: list[_GenerationDetails]

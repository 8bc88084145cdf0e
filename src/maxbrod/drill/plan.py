"""The sample that a drill restores, all partitions or a random part, into topics with names of their own. Pure."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from maxbrod.archive.renames import Rename
from maxbrod.drill.options import DrillOptions
from maxbrod.errors import UsageError
from maxbrod.model import TopicPartition
from maxbrod.registry.remap import parse_part
from maxbrod.restore.plan.request import OffsetRange, OffsetsMode, RestoreRequest

PREFIX: Final = "maxbrod-drill-"
_NAME_LETTERS_MAX: Final = 249
_DIGEST_LETTERS: Final = 16
# Restored records must stay until they have been compared, however old they are.
_CONFIGS: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A fraction (`part`) or a number (`count`) of the partitions; both None: all."""

    part: float | None = None
    count: int | None = None

    def __str__(self) -> str:
        if self.part is not None:
            return f"{self.part * 100:g}%"
        return "all" if self.count is None else f"{self.count} partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRequest:
    """The topics to sample from (topics, exclude, as_of of `selection`), and the size of the sample."""

    selection: RestoreRequest
    sample: Sample = field(default_factory=Sample)
    seed: int | None = None
    accept_gaps: bool = False
    sandbox: bool = False
    """True if the cluster was started for this drill and ends with it."""
    schema_registry: str | None = None
    """An empty registry for the captured schemas."""
    unframed: tuple[str, ...] = ()
    """Topics whose keys or values have no schema ids."""

    def __post_init__(self) -> None:
        for word in self.unframed:
            parse_part(word)


def drill_request_of(options: DrillOptions, *, sandbox: bool) -> DrillRequest:
    """UsageError: a value has no meaning."""
    return DrillRequest(
        selection=RestoreRequest(topics=options.topics, exclude=options.exclude, as_of=options.as_of),
        sample=parse_sample(options.sample),
        seed=options.seed,
        accept_gaps=options.accept_gaps,
        sandbox=sandbox,
        schema_registry=options.schema_registry,
        unframed=tuple(options.unframed),
    )


def parse_sample(word: str) -> Sample:
    """`5%`, `12` or `all`."""
    if word == "all":
        return Sample()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", word, re.ASCII)
    if match is not None and 0 < float(match[1]) <= 100:
        return Sample(part=float(match[1]) / 100)
    if re.fullmatch(r"\d{1,9}", word, re.ASCII) and int(word):
        return Sample(count=int(word))
    raise UsageError(f"--sample {word!r} is not valid", hint="give a part such as 5%, a number of partitions, or all")


def draw(partitions: Sequence[TopicPartition], sample: Sample, seed: int) -> list[TopicPartition]:
    """At least one partition, if there is any. The same seed draws the same sample from the same partitions."""
    known = sorted(partitions)
    if sample.part is None and sample.count is None:
        return known
    size = sample.count if sample.part is None else round(len(known) * sample.part)
    count = min(len(known), max(1, size or 0))
    return sorted(random.Random(seed).sample(known, count))  # noqa: S311 - no secret


def prefix_of(drill_id: str) -> str:
    """The prefix of a drill's topics. No other topic has it: the id is random, and recorded in the archive."""
    return f"{PREFIX}{drill_id}-"


def scratch_name(drill_id: str, topic: str) -> str:
    """The name of a topic during a drill; shortened if Kafka would refuse its length."""
    name = prefix_of(drill_id) + topic
    if len(name) <= _NAME_LETTERS_MAX:
        return name
    digest = hashlib.sha256(topic.encode()).hexdigest()[:_DIGEST_LETTERS]
    return f"{name[: _NAME_LETTERS_MAX - len(digest) - 1]}-{digest}"


def drill_request(
    drill_id: str,
    partitions: Iterable[TopicPartition],
    topic_ids: Iterable[str],
    *,
    accept_gaps: bool,
    as_of: str | None,
) -> RestoreRequest:
    """The restore of these partitions of these incarnations, whole, into the drill's own topics."""
    chosen = sorted(partitions)
    topics = sorted({where.topic for where in chosen})
    return RestoreRequest(
        topics=tuple(topics),
        ranges=tuple(OffsetRange(where=where) for where in chosen),
        as_of=as_of,
        topic_ids=frozenset(topic_ids),
        rename=Rename(names={topic: scratch_name(drill_id, topic) for topic in topics}),
        configs=_CONFIGS,
        offsets=OffsetsMode.AUTO,
        accept_gaps=accept_gaps,
    )

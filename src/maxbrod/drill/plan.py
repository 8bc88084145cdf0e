"""What a drill restores: all, or partitions drawn by chance; and under which names, so that nobody mistakes them."""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.errors import UsageError
from maxbrod.restore.plan.rename import Rename
from maxbrod.restore.plan.request import OffsetRange, OffsetsMode, RestoreRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxbrod.model import TopicPartition

PREFIX: Final = "maxbrod-drill-"
_NAME_LETTERS_MAX: Final = 249
_DIGEST_LETTERS: Final = 16
# What is restored must stay there until it has been compared, however old it is.
_CONFIGS: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """`part` of the partitions, or so many of them; both None: all."""

    part: float | None = None
    count: int | None = None

    def __str__(self) -> str:
        if self.part is not None:
            return f"{self.part * 100:g}%"
        return "all" if self.count is None else f"{self.count} partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRequest:
    """Which topics to draw from (topics, exclude, as_of of `selection`), and how much."""

    selection: RestoreRequest
    sample: Sample = field(default_factory=Sample)
    seed: int | None = None
    accept_gaps: bool = False
    sandbox: bool = False
    """The cluster was started for this drill, and dies with it."""


def parse_sample(word: str) -> Sample:
    """`5%`, `12` or `all`."""
    if word == "all":
        return Sample()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", word, re.ASCII)
    if match is not None and 0 < float(match[1]) <= 100:
        return Sample(part=float(match[1]) / 100)
    if re.fullmatch(r"\d{1,9}", word, re.ASCII) and int(word):
        return Sample(count=int(word))
    raise UsageError(f"--sample {word!r} is no sample", hint="give a part such as 5%, a number of partitions, or all")


def draw(partitions: Sequence[TopicPartition], sample: Sample, seed: int) -> list[TopicPartition]:
    """At least one, where there is one. The same seed draws the same of the same."""
    known = sorted(partitions)
    if sample.part is None and sample.count is None:
        return known
    wanted = sample.count if sample.part is None else round(len(known) * sample.part)
    count = min(len(known), max(1, wanted or 0))
    return sorted(random.Random(seed).sample(known, count))  # noqa: S311 - no secret


def prefix_of(drill_id: str) -> str:
    """Nobody else's topics begin with this: the id is drawn at random, and known to the archive."""
    return f"{PREFIX}{drill_id}-"


def scratch_name(drill_id: str, topic: str) -> str:
    """What a topic is called while it is drilled; shortened where Kafka would not have it."""
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
    """What to restore: these partitions whole, of these incarnations, into topics of the drill's own."""
    chosen = sorted(partitions)
    topics = sorted({each.topic for each in chosen})
    return RestoreRequest(
        topics=tuple(topics),
        ranges=tuple(OffsetRange(where=each) for each in chosen),
        as_of=as_of,
        topic_ids=frozenset(topic_ids),
        rename=Rename(names={topic: scratch_name(drill_id, topic) for topic in topics}),
        configs=_CONFIGS,
        offsets=OffsetsMode.AUTO,
        accept_gaps=accept_gaps,
    )

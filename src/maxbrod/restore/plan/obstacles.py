"""Obstacles to a restore, as values: what is wrong, what to do about it, and whether it is fatal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from maxbrod.errors import CorruptDataError, IncompleteError, MaxbrodError, RefusedError, UsageError


class ObstacleKind(StrEnum):
    """In the order in which they are reported."""

    TOPIC_MISSING = "topic missing"
    GROUP_MISSING = "group missing"
    NOTHING_CHOSEN = "nothing chosen"
    CORRUPT = "corrupt"
    UNEXPLAINED = "unexplained"
    INCOMPLETE = "incomplete"
    PRUNED = "pruned"
    """The chosen point in the past had records that were pruned since."""
    UNPROVED = "unproved"
    """The layout of another tool does not record enough to prove that the archive is complete."""
    NAME = "name"
    DONE_BEFORE = "done before"
    HELD = "held"
    """An interrupted restore writes to the topic."""
    TARGET_NOT_EMPTY = "target not empty"
    PARTITION_COUNT = "partition count"
    OFFSETS = "offsets"
    LEADER_EPOCHS = "leader epochs"
    SPACE = "disk space"
    BROKERS = "brokers"
    PERMISSION = "permission"
    RIGHT_UNKNOWN = "right unknown"
    """Common and harmless: brokers do not reveal rights on topics that do not exist yet."""
    CONFIG = "configuration"
    RETENTION = "retention"
    GROUPS = "groups"
    ACCESS = "access"
    SCHEMAS = "schemas"


_ERRORS: Final[dict[ObstacleKind, type[MaxbrodError]]] = {
    ObstacleKind.TOPIC_MISSING: UsageError,
    ObstacleKind.GROUP_MISSING: UsageError,
    ObstacleKind.NOTHING_CHOSEN: UsageError,
    ObstacleKind.CORRUPT: CorruptDataError,
    ObstacleKind.UNEXPLAINED: IncompleteError,
    ObstacleKind.INCOMPLETE: IncompleteError,
    ObstacleKind.PRUNED: IncompleteError,
    ObstacleKind.UNPROVED: IncompleteError,
}
GAPS: Final = frozenset({ObstacleKind.CORRUPT, ObstacleKind.UNEXPLAINED, ObstacleKind.INCOMPLETE, ObstacleKind.PRUNED})
"""Requested records that the archive lacks: fatal, unless the user accepts gaps."""
_ORDER: Final = {kind: place for place, kind in enumerate(ObstacleKind)}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """An obstacle, usually about one topic or partition. One that is not fatal is a warning."""

    kind: ObstacleKind
    where: str | None
    what: str
    hint: str | None
    fatal: bool = True
    offset: int | None = None

    def __str__(self) -> str:
        return self.what if self.where is None else f"{self.where}: {self.what}"


def in_order(obstacles: Iterable[Obstacle]) -> tuple[Obstacle, ...]:
    """Sorted, fatal ones first, each once."""
    return tuple(
        sorted(
            dict.fromkeys(obstacles),
            key=lambda obstacle: (
                not obstacle.fatal,
                _ORDER[obstacle.kind],
                obstacle.where or "",
                obstacle.offset or 0,
            ),
        )
    )


def refusal(obstacles: Iterable[Obstacle]) -> MaxbrodError | None:
    """The error that ends the command, about the first fatal obstacle. Its message counts the others."""
    fatal = [obstacle for obstacle in in_order(obstacles) if obstacle.fatal]
    if not fatal:
        return None
    first, others = fatal[0], len(fatal) - 1
    more = "" if not others else f", and {others} more" if others > 1 else ", and one more"
    return _ERRORS.get(first.kind, RefusedError)(
        f"this cannot be restored: {first.what}{more}",
        operation="plan a restore",
        object_name=first.where,
        offset=first.offset,
        hint=first.hint,
    )

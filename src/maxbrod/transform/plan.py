"""What records go through on their way into a topic or another archive: what is asked for, and what it has changed.

Values only. The expressions are Spark SQL's; what they may say is checked where Spark is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the types of fields
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

FIELDS: Final = ("key", "value", "headers", "timestamp")
"""Of a record, that can be rewritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """Records that `where` is true of, with the fields that `select` names rewritten; None: all, none."""

    where: str | None = None
    select: str | None = None

    def __post_init__(self) -> None:
        for name, text in (("where", self.where), ("select", self.select)):
            if text is not None and not text.strip():
                raise UsageError(f"--{name} says nothing", hint="leave it out, or give a Spark SQL expression")

    @property
    def text(self) -> str:
        """All that was asked for: the columns that it does not mention need not be there."""
        return f"{self.where or ''} {self.select or ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What became of the records of one topic, or of a part of it."""

    topic: str
    read: int = 0
    kept: int = 0
    dropped: int = 0
    changed: Mapping[str, int] = field(default_factory=dict)
    """By field, records that were kept and have another value there. Those that none has are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformPlan:
    """A transformation that goes before a restore."""

    where: str | None
    select: str | None
    fields: tuple[str, ...] = ()
    """That are rewritten."""
    staging: str
    """The URL under which the transformed records stand until they are restored."""
    topics: tuple[Changes, ...] = ()
    """What it has changed. None before it is done."""


def changes_of(document: Mapping[str, Any]) -> Changes:
    """The inverse of `dataclasses.asdict`."""
    return Changes(**{**document, "changed": dict(document["changed"])})


def add_changes(parts: Iterable[Changes]) -> tuple[Changes, ...]:
    """One for each topic, in the order of names."""
    found: dict[str, Changes] = {}
    for each in parts:
        known = found.get(each.topic, Changes(topic=each.topic))
        changed = Counter(known.changed)
        changed.update(each.changed)
        found[each.topic] = Changes(
            topic=each.topic,
            read=known.read + each.read,
            kept=known.kept + each.kept,
            dropped=known.dropped + each.dropped,
            changed=dict(changed),
        )
    return tuple(found[topic] for topic in sorted(found))

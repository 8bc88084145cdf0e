"""The transformation of records on their way into a topic or another archive: its expressions and its changes.

Values only. `transform.frame` checks the expressions, with Spark.
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
"""The fields of a record that can be rewritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """Keeps records for which `where` is true, None: all; and rewrites the fields of `select`, None: none."""

    where: str | None = None
    select: str | None = None

    def __post_init__(self) -> None:
        for name, text in (("where", self.where), ("select", self.select)):
            if text is not None and not text.strip():
                raise UsageError(f"--{name} is empty", hint="leave it out, or give a Spark SQL expression")

    @property
    def text(self) -> str:
        """Both expressions. Columns that they do not mention are not computed."""
        return f"{self.where or ''} {self.select or ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """How the records of one topic, or of a part of it, were changed."""

    topic: str
    read: int = 0
    kept: int = 0
    dropped: int = 0
    changed: Mapping[str, int] = field(default_factory=dict)
    """The number of kept records with a changed value, by field. Fields without any are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformPlan:
    """The transformation before a restore."""

    where: str | None
    select: str | None
    fields: tuple[str, ...] = ()
    """The fields that are rewritten."""
    staging: str
    """The URL at which the transformed records are staged."""
    topics: tuple[Changes, ...] = ()
    """The changes by topic; empty before it has run."""


def changes_of(document: Mapping[str, Any]) -> Changes:
    """The inverse of `dataclasses.asdict`."""
    return Changes(**{**document, "changed": dict(document["changed"])})


def add_changes(parts: Iterable[Changes]) -> tuple[Changes, ...]:
    """The sums for each topic, sorted by name."""
    found: dict[str, Changes] = {}
    for part in parts:
        known = found.get(part.topic, Changes(topic=part.topic))
        changed = Counter(known.changed)
        changed.update(part.changed)
        found[part.topic] = Changes(
            topic=part.topic,
            read=known.read + part.read,
            kept=known.kept + part.kept,
            dropped=known.dropped + part.dropped,
            changed=dict(changed),
        )
    return tuple(found[topic] for topic in sorted(found))

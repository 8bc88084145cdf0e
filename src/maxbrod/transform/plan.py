"""The transformation of records on their way into a topic or another archive: its expressions and its changes.

Values only. `transform.frame` checks the expressions, with Spark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from maxbrod.errors import RefusedError, UsageError

PREFIX: Final = "_m_"
RECORD, END, FAILED = 0, 1, 2
"""Kinds of rows: a record; the end of an item, with the number of its records as offset; an error, as value."""

PLACES: Final = {"task": "int", "item": "int", "kind": "int"}
"""The task and the item that a row belongs to, and its kind."""
CARRIED: Final = {
    "offset": "bigint",
    "timestamp_ms": "bigint",
    "timestamp_type": "int",
    "leader_epoch": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:binary,value:binary>>",
}
"""The fields of every record that are written again."""
SHOWN: Final = {
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "producer_id": "bigint",
    "producer_epoch": "smallint",
    "sequence": "int",
    "transactional": "boolean",
}
"""Further fields that expressions may use."""
FLAGS: Final = ("keep", "key_changed", "value_changed", "headers_changed", "timestamp_changed")

_MS_MAX: Final = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column of the table: its type, and the expression from which Spark derives it."""

    kind: str
    made: str
    needs: str
    """The internal column that it needs."""


def _same(name: str, kind: str) -> TableColumn:
    return TableColumn(kind=kind, made=f"{PREFIX}{name}", needs=name)


TABLE: Final = {
    "key": _same("key", "binary"),
    "value": _same("value", "binary"),
    "topic": _same("topic", "string"),
    "partition": _same("partition", "int"),
    "offset": _same("offset", "bigint"),
    "timestamp": TableColumn(
        kind="timestamp",
        # Spark counts microseconds, and fails with times beyond this.
        made=f"case when _m_timestamp_ms between -{_MS_MAX} and {_MS_MAX} then timestamp_millis(_m_timestamp_ms) end",
        needs="timestamp_ms",
    ),
    "timestampType": _same("timestamp_type", "int"),
    "headers": TableColumn(
        kind="array<struct<key:string,value:binary>>",
        # A cast keeps bytes that are not UTF-8, so that a header which is passed through stays unchanged.
        made="case when size(_m_headers) > 0 then "
        "transform(_m_headers, h -> named_struct('key', cast(h.key as string), 'value', h.value)) end",
        needs="headers",
    ),
    "topicId": _same("topic_id", "string"),
    "timestampMs": _same("timestamp_ms", "bigint"),
    "leaderEpoch": _same("leader_epoch", "int"),
    "producerId": _same("producer_id", "bigint"),
    "producerEpoch": _same("producer_epoch", "smallint"),
    "sequence": _same("sequence", "int"),
    "transactional": _same("transactional", "boolean"),
}
"""The columns of the table of an archive, those by default and those on request."""


def mentioned(text: str) -> list[str]:
    """Columns of the table that expressions may use: those whose names occur in the text, even within a word."""
    if "*" in text:
        return list(TABLE)
    return [name for name in TABLE if re.search(re.escape(name), text, re.IGNORECASE)]


def shown_for(text: str) -> list[str]:
    """The columns of SHOWN that these expressions need."""
    needed = {TABLE[name].needs for name in mentioned(text)}
    return [name for name in SHOWN if name in needed]


def row_kinds(shown: Iterable[str]) -> dict[str, str]:
    """Return the types of the columns in the rows of the reading task."""
    return {**PLACES, **CARRIED, **{name: SHOWN[name] for name in shown}}


def schema_of(shown: Iterable[str]) -> str:
    """The schema of the rows of the reading task, as Spark reads it."""
    return ", ".join(f"{PREFIX}{name} {kind}" for name, kind in row_kinds(shown).items())


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
    """The changes to the records of one topic, or of a part of it."""

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


def mixed(what: str) -> RefusedError:
    return RefusedError(
        f"the expressions do not keep records in order: {what}",
        operation="transform",
        hint="use expressions over single records, without subqueries",
    )

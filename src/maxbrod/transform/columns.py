"""The columns that expressions use, and those that records travel in between the two tasks of a transformation.

The reading task returns records in internal columns (`_m_…`), with each field unchanged. Spark derives the columns of
the table from them, and only those that an expression uses. Fields that no expression rewrites pass through unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def schema_of(shown: Iterable[str]) -> str:
    """The schema of the rows of the reading task, as Spark reads it."""
    kinds = {**PLACES, **CARRIED, **{name: SHOWN[name] for name in shown}}
    return ", ".join(f"{PREFIX}{name} {kind}" for name, kind in kinds.items())


def table_schema() -> str:
    return ", ".join(f"`{name}` {column.kind}" for name, column in TABLE.items())

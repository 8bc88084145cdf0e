"""The columns that expressions speak of while records are transformed, and those that records travel in.

A task gives records in columns of our own (`_m_…`), each field as it is. The columns of the table are made of them by
Spark, and only those that an expression uses. What no expression rewrites goes on as it came.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX: Final = "_m_"
RECORD, END, FAILED = 0, 1, 2
"""Kinds of rows: a record; after those of an item, with their number as its offset; what went wrong, as its value."""

PLACES: Final = {"task": "int", "item": "int", "kind": "int"}
"""Which task and which of its items a row belongs to, and what it is."""
CARRIED: Final = {
    "offset": "bigint",
    "timestamp_ms": "bigint",
    "timestamp_type": "int",
    "leader_epoch": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:binary,value:binary>>",
}
"""What is written again of every record."""
SHOWN: Final = {
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "producer_id": "bigint",
    "producer_epoch": "smallint",
    "sequence": "int",
    "transactional": "boolean",
}
"""What expressions may look at besides."""
FLAGS: Final = ("keep", "key_changed", "value_changed", "headers_changed", "timestamp_changed")

_MS_MAX: Final = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column of the table: its type, and how Spark makes it."""

    kind: str
    made: str
    needs: str
    """The column of ours."""


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
        # Beyond that Spark's microseconds do not reach, and it would fail.
        made=f"case when _m_timestamp_ms between -{_MS_MAX} and {_MS_MAX} then timestamp_millis(_m_timestamp_ms) end",
        needs="timestamp_ms",
    ),
    "timestampType": _same("timestamp_type", "int"),
    "headers": TableColumn(
        kind="array<struct<key:string,value:binary>>",
        # A cast keeps bytes that are no UTF-8, so that a header which is passed on stays what it was.
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
"""As the table of an archive has them, the usual ones and those that it has on request."""


def mentioned(text: str) -> list[str]:
    """Columns of the table that expressions may use: whose names stand somewhere in them, if only in a word."""
    if "*" in text:
        return list(TABLE)
    return [name for name in TABLE if re.search(re.escape(name), text, re.IGNORECASE)]


def shown_for(text: str) -> list[str]:
    """Which of SHOWN these expressions need."""
    needed = {TABLE[name].needs for name in mentioned(text)}
    return [name for name in SHOWN if name in needed]


def schema_of(shown: Iterable[str]) -> str:
    """Of the rows that a task gives, as Spark reads it."""
    kinds = {**PLACES, **CARRIED, **{name: SHOWN[name] for name in shown}}
    return ", ".join(f"{PREFIX}{name} {kind}" for name, kind in kinds.items())


def table_schema() -> str:
    return ", ".join(f"`{name}` {column.kind}" for name, column in TABLE.items())

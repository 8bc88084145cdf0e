"""`offsets.db`: the SQLite database from which the tool resumes, at the offset after the last one.

Reading is limited in every respect, because a database brings its own schema. Writing creates it from plain rows.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import CorruptDataError, ObjectNotFoundError
from maxbrod.layouts.documents import INT32_MAX, is_plain_name
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.storage.interface import Storage

_BYTES_MAX: Final = 256 << 20
_STEPS: Final = 100_000
_STEPS_MAX: Final = 10_000  # times _STEPS: a table of millions of rows passes, an endless view does not

_SCHEMA: Final = """
CREATE TABLE offsets (
    backup_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    checkpoint_ts INTEGER NOT NULL DEFAULT (strftime('%s', 'now') * 1000),
    PRIMARY KEY (backup_id, topic, partition)
);
CREATE TABLE backup_jobs (
    backup_id TEXT PRIMARY KEY,
    source_cluster_id TEXT,
    status TEXT NOT NULL DEFAULT 'running',
    created_at INTEGER NOT NULL DEFAULT (strftime('%s', 'now') * 1000),
    last_heartbeat INTEGER NOT NULL DEFAULT (strftime('%s', 'now') * 1000),
    last_checkpoint INTEGER
);
CREATE INDEX idx_offsets_backup ON offsets(backup_id);
CREATE INDEX idx_jobs_status ON backup_jobs(status);
"""


def read_positions(storage: Storage, path: str, backup_id: str) -> dict[TopicPartition, int] | None:
    """The next offset of each partition; None if there is no database."""
    name = storage.name_of(path)
    try:
        size = storage.head(path).size
        if size > _BYTES_MAX:
            raise CorruptDataError(f"a database of {size} bytes cannot be right", object_name=name)
        data = bytearray(storage.get(path))
    except ObjectNotFoundError:
        return None
    try:
        rows = _rows(data, backup_id)
    except (sqlite3.Error, OverflowError, MemoryError) as error:
        raise CorruptDataError(f"this is not a database of offsets: {error}", object_name=name) from error
    positions = {}
    for row in rows:
        if not _is_row(*row):
            raise CorruptDataError("the database of offsets has a row that cannot be right", object_name=name)
        topic, partition, last_offset = row
        positions[TopicPartition(topic=topic, partition=partition)] = last_offset + 1
    return positions


def _rows(data: bytearray, backup_id: str) -> list[tuple[Any, Any, Any]]:
    if data[18:20] == b"\2\2":
        # The tool uses a write-ahead log, which a database in memory cannot have.
        data[18:20] = b"\1\1"
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(bytes(data))
        connection.set_progress_handler(_StepLimit(), _STEPS)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        query = "SELECT topic, partition, last_offset FROM offsets WHERE backup_id = ?"
        return connection.execute(query, (backup_id,)).fetchall()


class _StepLimit:
    """Ends a query that takes too many steps."""

    def __init__(self) -> None:
        self._left = _STEPS_MAX

    def __call__(self) -> int:
        self._left -= 1
        return self._left < 0


def _is_row(topic: object, partition: object, last_offset: object) -> bool:
    if not isinstance(topic, str) or not isinstance(partition, int) or not isinstance(last_offset, int):
        return False
    return is_plain_name(topic) and 0 <= partition <= INT32_MAX and last_offset >= -1


def positions_database(
    backup_id: str, positions: Mapping[TopicPartition, int], cluster_id: str | None, taken_at_ms: int
) -> bytes:
    rows = [
        (backup_id, where.topic, where.partition, position - 1, taken_at_ms)
        for where, position in sorted(positions.items())
        if position > 0
    ]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        connection.executemany("INSERT INTO offsets VALUES (?, ?, ?, ?, ?)", rows)
        job = (backup_id, cluster_id, "completed", taken_at_ms, taken_at_ms, taken_at_ms)
        connection.execute("INSERT INTO backup_jobs VALUES (?, ?, ?, ?, ?, ?)", job)
        connection.commit()
        return connection.serialize()

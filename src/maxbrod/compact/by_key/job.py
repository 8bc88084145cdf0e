"""Compaction by key as one Spark job: workers read, Spark finds the newest record of each key, workers write.

Records are grouped by the bytes of their keys, never by a hash of them, so that no two keys can be made to collide.
Spark aggregates in memory as long as the keys fit, and then sorts and spills them to disk.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from maxbrod.compact.by_key.task import (
    FOUND_SPARK,
    RECORD,
    ByKeySettings,
    GroupItem,
    GroupOutcome,
    read_groups,
    write_groups,
)
from maxbrod.work.jobs import board_of, collect, counted
from maxbrod.work.progress import Watcher
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compact_groups(
    session: SparkSession,
    settings: ByKeySettings,
    items: Sequence[GroupItem],
    *,
    tasks: int,
    meter: Watcher | None = None,
    stop: threading.Event | None = None,
) -> list[GroupOutcome]:
    """The outcome of every group. `items` are numbered from 0; `tasks` is about how many tasks each step has."""
    # Each worker unpickles its own items only.
    payloads = tuple(map(pickle.dumps, items))
    read = tuple(tuple(task) for task in spread([(item.raw_bytes, item.number) for item in items], tasks))
    with board_of(session, len(read) + tasks) as board:
        found = session.range(0, len(read), 1, len(read)).mapInArrow(
            counted(partial(read_groups, settings, payloads, read), board), FOUND_SPARK
        )
        written = _newest(found, tasks).mapInArrow(
            counted(partial(write_groups, settings, payloads), board, len(read)), "answer binary"
        )
        table = collect(session, written, name=settings.run_id, meter=meter, stop=stop, board=board)
    return [
        outcome
        for answer in table["answer"].to_pylist()
        for outcome in pickle.loads(answer)  # noqa: S301 - the workers of this job have pickled it
    ]


def _newest(found: DataFrame, tasks: int) -> DataFrame:
    """The newest record of each key of a partition, and the notes: all rows of a group in one task, in order."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - workers load this module, too

    newest = found.groupBy("place", "kind", "key").agg(
        sql.max("offset").alias("offset"), sql.max_by("mark", "offset").alias("mark")
    )
    # Spark has 200 tasks for this by default, and each would cost more than it does.
    newest = newest.coalesce(tasks)
    is_record = sql.col("kind") == RECORD
    stays = newest.where(~(is_record & (sql.col("mark") % 2 == 1)))
    rows = stays.select(
        sql.shiftright("mark", 1).alias("group"),
        "kind",
        "offset",
        sql.when(~is_record, sql.col("key")).alias("note"),
    )
    return rows.repartition(tasks, "group").sortWithinPartitions("group", "offset")

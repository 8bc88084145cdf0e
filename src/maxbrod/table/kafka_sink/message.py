"""What a task tells the driver: which transaction holds its records, and how many there are of each partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

if TYPE_CHECKING:
    from maxbrod.kafka.produce.transactions import Transaction
    from maxbrod.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A transaction that holds all records of an attempt and waits for its end."""

    transaction: Transaction
    records: dict[TopicPartition, int]


@dataclass(frozen=True, kw_only=True)
class Written(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed
    """Of one attempt. `filled` is None where there was no row, or where the rows are in Kafka already."""

    filled: Filled | None = None
    query_id: str | None = None
    """Spark's id of the query, which a restart keeps."""
    skipped: bool = False
    """Whether rows were left out, because their batch was decided on before."""

"""Which partition a row goes to, and that nothing of a record is lost on the way into batches. No broker."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.decode import decode
from maxbrod.batch.hashes import partition_for
from maxbrod.errors import RefusedError
from maxbrod.model import Codec
from maxbrod.table.sink.input import to_rows
from maxbrod.table.sink.kafka_task import PORTION_BYTES, PartitionBatches, SinkTopic, portions, shared_out

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestampMs", pa.int64()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
MAYBE_BYTES = st.none() | st.binary(max_size=20)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from(["orders", "payments"]),
            "partition": st.none() | st.integers(0, 2),
            "key": MAYBE_BYTES,
            "value": MAYBE_BYTES,
            "timestampMs": st.integers(-(2**62), 2**62),
            "headers": st.none()
            | st.lists(st.fixed_dictionaries({"key": st.text(max_size=5), "value": MAYBE_BYTES}), max_size=3),
        }
    ),
    max_size=30,
    min_size=1,
)


def target(topic: str, partitions: int = 3, batch_bytes_max: int = 1_000_000) -> SinkTopic:
    return SinkTopic(topic=topic, topic_id=UUID(int=1), partitions=partitions, batch_bytes_max=batch_bytes_max)


def share(found: list[dict[str, Any]], *, partitions: int = 3, task: int = 0, **options: Any) -> list[PartitionBatches]:
    rows = to_rows(pa.RecordBatch.from_pylist(found, schema=SCHEMA), topic=None, now_ms=0)
    targets = [target(name, partitions, **options) for name in rows.topic.dictionary.to_pylist()]
    return shared_out(rows, targets, first_row=0, task=task, codec=Codec.NONE)


def records(shares: list[PartitionBatches]) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    return {
        (each.where.topic, each.where.partition): [
            (row["timestamp_ms"], row["key"], row["value"], [(pair["key"], pair["value"]) for pair in row["headers"]])
            for row in decode(each.data, each.headers).to_pylist()
        ]
        for each in shares
    }


@given(ROWS, st.integers(0, 5))
def test_every_record_is_in_one_partition_whole_and_in_order(found: list[dict[str, Any]], task: int) -> None:
    expected: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    for number, row in enumerate(found):
        partition = row["partition"]
        if partition is None and row["key"] is None:
            partition = (task + number) % 3
        elif partition is None:
            partition = int(partition_for(pa.array([row["key"]], pa.binary()), 3, null_partition=0)[0])
        headers = [(each["key"].encode(), each["value"]) for each in row["headers"] or ()]
        record = (row["timestampMs"], row["key"], row["value"], headers)
        expected.setdefault((row["topic"], partition), []).append(record)
    assert records(share(found, task=task)) == expected
    assert records(share(found, task=task, batch_bytes_max=100)) == expected


def test_errors_can_tell_the_row_of_each_batch() -> None:
    found = [{"topic": "orders", "partition": number % 2, "value": b"x" * 50} for number in range(6)]
    shares = share(found, batch_bytes_max=130)
    assert {each.where.partition: each.source.tolist() for each in shares} == {0: [0, 2, 4], 1: [1, 3, 5]}


def test_a_partition_that_the_topic_does_not_have_is_refused() -> None:
    for partition, words in ((3, "partition 3, and the topic has 3.*in orders"), (-2, "partition -2")):
        with pytest.raises(RefusedError, match=words):
            share([{"topic": "orders", "partition": partition, "value": b""}])


def test_portions_hold_all_rows_in_order_and_bounded_bytes() -> None:
    schema = pa.schema([("value", pa.binary()), ("number", pa.int64())])

    def batch(first: int, count: int, size: int) -> pa.RecordBatch:
        found = [{"value": bytes(size), "number": first + each} for each in range(count)]
        return pa.RecordBatch.from_pylist(found, schema=schema)

    large = batch(30, 40, PORTION_BYTES // 10)
    cut = list(portions([batch(0, 10, 5), batch(10, 20, 5), large, batch(70, 5, 5)]))
    assert [row for each in cut for row in each.column("number").to_pylist()] == list(range(75))
    assert len(cut) >= 3
    assert all(each.nbytes < 2.5 * PORTION_BYTES for each in cut)

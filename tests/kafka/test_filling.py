"""A log's end is moved on to exactly where it shall be, and no consumer sees by what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import RefusedError
from maxbrod.kafka.admin import delete_records
from maxbrod.kafka.fetch.offsets import log_end, log_ends
from maxbrod.kafka.produce import empty_offsets
from maxbrod.kafka.produce.appends import sequence_after
from maxbrod.kafka.produce.empty_offsets import fill_by_transactions, fillers
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import new_producer_id
from maxbrod.kafka.produce.transactions import Transaction, end_request
from maxbrod.sandbox.events import orders
from maxbrod.sandbox.topics import create_topic
from support.kafka_appends import batches_of, feed_of
from support.kafka_reads import bounds, client_of, partition_of

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster
    from support.java_oracle import JavaOracle

KEEP = {"retention.ms": "-1"}


def test_a_log_starts_at_ten_million_and_its_first_record_is_the_first_that_is_seen(
    cluster: Cluster, java: JavaOracle, topic: str
) -> None:
    create_topic(cluster, topic, config=KEEP)
    start = 10_000_017
    records = orders(100)
    where = partition_of(topic)
    with client_of(cluster) as client:
        identity = new_producer_id(client)
        done = list(produce_all(client, [feed_of(client, topic, fillers(start, identity))]))
        assert sum(each.count for each in done) == start
        moved, failed = delete_records(client, {where: start})
        assert (moved, failed) == ({where: start}, {})
        # The producer goes on with its sequence, though none of its records is left.
        batches = batches_of(records, identity, first_sequence=sequence_after(0, start))
        list(produce_all(client, [feed_of(client, topic, batches, first_offset=start)]))
        assert bounds(client, where) == (start, start + 100)
    seen = java.consume(cluster.bootstrap, topic, 0, from_offset=start)
    assert [each.offset for each in seen] == list(range(start, start + 100))
    assert [each.value for each in seen] == records.column("value").to_pylist()


def test_empty_transactions_fill_holes_of_several_partitions_and_no_consumer_sees_them(
    cluster: Cluster, java: JavaOracle, topic: str
) -> None:
    create_topic(cluster, topic, partitions=3, config=KEEP)
    ends = {partition_of(topic, index): end for index, end in enumerate((5, 1, 23))}
    with client_of(cluster) as client:
        identity = new_producer_id(client)
        list(produce_all(client, [feed_of(client, topic, batches_of(orders(2), identity))]))
        fill_by_transactions(client, ends, transactional_id=topic)
        assert log_ends(client, ends) == ends
        batches = batches_of(orders(10), identity, first_sequence=2)
        list(produce_all(client, [feed_of(client, topic, batches, first_offset=5)]))
    for isolation in ("read_committed", "read_uncommitted"):
        seen = java.consume(cluster.bootstrap, topic, 0, isolation_level=isolation)
        assert [each.offset for each in seen] == [0, 1, *range(5, 15)]
        assert java.consume(cluster.bootstrap, topic, 2, isolation_level=isolation) == []


def test_a_filling_that_died_within_a_transaction_is_finished_by_the_next(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic, config=KEEP)
    where = partition_of(topic)
    ended = []

    def dies(transaction: Transaction, *, commit: bool) -> object:
        ended.append(transaction)
        if len(ended) == 4:
            raise KeyboardInterrupt
        return end_request(transaction, commit=commit)

    with client_of(cluster) as client:
        with monkeypatch.context() as patched:
            patched.setattr(empty_offsets, "end_request", dies)
            with pytest.raises(KeyboardInterrupt):
                fill_by_transactions(client, {where: 9}, transactional_id=topic)
        fill_by_transactions(client, {where: 9}, transactional_id=topic)
        assert log_end(client, where) == 9


def test_a_log_that_ends_beyond_the_hole_is_refused(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, config=KEEP)
    where = partition_of(topic)
    with client_of(cluster) as client:
        list(produce_all(client, [feed_of(client, topic, batches_of(orders(5), new_producer_id(client)))]))
        with pytest.raises(RefusedError, match="5"):
            fill_by_transactions(client, {where: 3}, transactional_id=topic)
        assert log_end(client, where) == 5

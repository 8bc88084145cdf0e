"""Whoever holds a partition back is told by name, with where and when it began; nobody else is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from maxbrod.kafka.fetch.offsets import LATEST, list_offsets
from maxbrod.kafka.produce.transactions import open_transactions
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, open_transaction, produce, produce_transaction
from support.kafka_reads import client_of, partition_of

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster


def test_open_transactions_are_told_in_the_order_in_which_they_hold_the_partition_back(
    cluster3: Cluster, topic: str
) -> None:
    create_topic(cluster3, topic, partitions=3)
    every = [partition_of(topic, index) for index in range(3)]
    produce(cluster3, topic, numbered(4), partition=1, enable_idempotence=True)
    produce_transaction(cluster3, topic, numbered(2), transactional_id=f"{topic}-over", partition=1)
    began_ms = time.time_ns() // 1_000_000
    with (
        open_transaction(cluster3, topic, numbered(3), transactional_id=f"{topic}-one", partition=1) as first,
        open_transaction(cluster3, topic, numbered(2), transactional_id=f"{topic}-two", partition=1) as second,
        client_of(cluster3) as client,
    ):
        found = open_transactions(client, [*every, partition_of(topic, 9), partition_of("no-such-topic")])
        stable = list_offsets(client, {every[1]: LATEST}, read_committed=True)[every[1]].offset
    assert set(found) == set(every)
    assert found[every[0]] == found[every[2]] == ()
    one, two = found[every[1]]
    assert (one.transactional_id, one.start_offset) == (f"{topic}-one", first[0])
    assert (two.transactional_id, two.start_offset) == (f"{topic}-two", second[0])
    assert one.producer_id != two.producer_id
    assert stable == one.start_offset
    for each in (one, two):
        assert each.started_at_ms is not None
        # One machine has one clock.
        assert began_ms <= each.started_at_ms <= time.time_ns() // 1_000_000
        assert each.last_timestamp_ms >= began_ms
        assert each.timeout_ms == 60_000


def test_a_transaction_that_has_ended_holds_nothing_back(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic)
    where = partition_of(topic)
    for commit in (True, False):
        produce_transaction(cluster, topic, numbered(2), transactional_id=topic, commit=commit)
    with client_of(cluster) as client:

        def stable() -> int:
            return list_offsets(client, {where: LATEST}, read_committed=True)[where].offset

        # Two transactions of two records and a marker; the coordinator writes markers when it has answered.
        wait_for("both markers", lambda: stable() == 6, timeout_s=60)
        assert open_transactions(client, [where]) == {where: ()}

"""A transaction may be filled by one process and ended by another, and how it ended can be asked afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pytest

from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.errors import RefusedError, UsageError
from maxbrod.kafka.fetch.offsets import LATEST, list_offsets
from maxbrod.kafka.produce.appends import Batch, Feed, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.produce.transactions import (
    Standing,
    Transaction,
    add_partitions,
    begin,
    end,
    longest_timeout_ms,
    ongoing,
    standings,
)
from maxbrod.sandbox.events import orders
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.kafka_appends import feed_of
from support.kafka_reads import client_of, partition_of

if TYPE_CHECKING:
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.sandbox.cluster import Cluster
    from support.java_oracle import JavaOracle


def batches(transaction: Transaction, count: int, *, first_sequence: int = 0) -> list[Batch]:
    data = encode(orders(count), starts=np.arange(0, count, 10))
    return stamped(data, walk(data), transaction.identity, first_sequence=first_sequence, transactional=True)


def feed(client: KafkaClient, topic: str, appends: list[Batch]) -> Feed:
    placed = feed_of(client, topic, appends)
    return Feed(where=placed.where, topic_id=placed.topic_id, first_offset=None, appends=appends)


def filled(client: KafkaClient, topic: str, name: str, count: int = 30, *, timeout_ms: int = 60_000) -> Transaction:
    transaction = begin(client, name, timeout_ms=timeout_ms)
    add_partitions(client, transaction, [partition_of(topic)])
    appends = batches(transaction, count)
    done = list(produce_all(client, [feed(client, topic, appends)], transactional_id=name))
    assert sum(each.count for each in done) == count
    assert all(each.base_offset >= 0 for each in done)
    return transaction


def stable(client: KafkaClient, topic: str) -> int:
    where = partition_of(topic)
    return list_offsets(client, {where: LATEST}, read_committed=True)[where].offset


def test_a_transaction_that_its_producer_left_open_is_committed_by_another_process(
    cluster: Cluster, topic: str, java: JavaOracle
) -> None:
    create_topic(cluster, topic)
    with client_of(cluster) as client:
        one = filled(client, topic, f"{topic}-one")
        produce(cluster, topic, numbered(3))  # somebody else writes between
        two = filled(client, topic, f"{topic}-two")
        assert stable(client, topic) == 0
        assert ongoing(client, topic) == [f"{topic}-one", f"{topic}-two"]
        assert standings(client, [one, two]) == dict.fromkeys([f"{topic}-one", f"{topic}-two"], Standing.OPEN)
    with client_of(cluster) as other:
        end(other, one, commit=True)
        end(other, one, commit=True)  # the answer to the first may have been lost
        end(other, two, commit=False)
        assert standings(other, [one, two]) == {
            one.transactional_id: Standing.COMMITTED,
            two.transactional_id: Standing.ABORTED,
        }
        wait_for("both markers", lambda: stable(other, topic) == 65, timeout_s=60)
        assert ongoing(other, topic) == []
    seen = java.consume(cluster.bootstrap, topic, 0, isolation_level="read_committed")
    assert [each.offset for each in seen] == list(range(33))


def test_a_transaction_that_ended_otherwise_is_told_and_never_taken_for_committed(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic)
    with client_of(cluster) as client:
        aborted = filled(client, topic, f"{topic}-aborted")
        end(client, aborted, commit=False)
        with pytest.raises(RefusedError, match="INVALID_TXN_STATE"):
            end(client, aborted, commit=True)
        committed = filled(client, topic, f"{topic}-committed")
        end(client, committed, commit=True)
        with pytest.raises(RefusedError, match="INVALID_TXN_STATE"):
            end(client, committed, commit=False)
        pushed = filled(client, topic, f"{topic}-pushed")
        begin(client, pushed.transactional_id, timeout_ms=60_000)
        with pytest.raises(RefusedError, match=r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"):
            end(client, pushed, commit=True)
        unknown = Transaction(
            transactional_id=f"{topic}-{uuid4()}", identity=ProducerIdentity(producer_id=4711, epoch=0)
        )
        found = standings(client, [pushed, unknown])
    assert found == {pushed.transactional_id: Standing.ABORTED, unknown.transactional_id: Standing.FORGOTTEN}


def test_a_transaction_that_timed_out_is_told_as_aborted_and_cannot_be_committed(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic)
    with client_of(cluster) as client:
        late = filled(client, topic, topic, timeout_ms=1000)
        # Brokers look for such transactions every ten seconds.
        wait_for("the timeout", lambda: standings(client, [late])[topic] is Standing.ABORTED, timeout_s=120)
        with pytest.raises(RefusedError, match="has already ended the other way"):
            end(client, late, commit=True)
        wait_for("the marker", lambda: stable(client, topic) == 31, timeout_s=60)


def test_an_attempt_that_was_pushed_aside_writes_nothing_more(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic)
    with client_of(cluster) as client:
        first = filled(client, topic, topic)
        second = begin(client, topic, timeout_ms=60_000)
        assert second.identity.epoch > first.identity.epoch
        late = batches(first, 10, first_sequence=30)
        with pytest.raises(RefusedError, match="the transaction has ended"):
            list(produce_all(client, [feed(client, topic, late)], transactional_id=topic))
        wait_for("the marker", lambda: stable(client, topic) == 31, timeout_s=60)


def test_a_longer_timeout_than_the_brokers_allow_is_refused_by_name(cluster: Cluster, topic: str) -> None:
    with client_of(cluster) as client:
        longest_ms = longest_timeout_ms(client)
        assert longest_ms == 900_000
        begin(client, topic, timeout_ms=longest_ms)
        with pytest.raises(UsageError, match="INVALID_TRANSACTION_TIMEOUT") as caught:
            begin(client, topic, timeout_ms=longest_ms + 1)
    assert "transaction.max.timeout.ms" in str(caught.value.hint)

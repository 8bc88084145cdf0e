"""Options of a write into Kafka: refused where they cannot be right, and never with a secret in the error."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle

from maxbrod.errors import CorruptDataError, ObjectExistsError, UnsupportedFormatError, UsageError
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.produce.transactions import Transaction
from maxbrod.model import Codec, TopicPartition
from maxbrod.storage.stores import open_storage
from maxbrod.table.sink.input import NewTopics, parse_kafka_sink_options, sink_name
from maxbrod.table.sink.kafka_decisions import BatchDecision, BatchDecisions, DecisionOutcome, Filled
from maxbrod.table.source import ArchiveSource
from support.kafka_writes import COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

BROKER = {"kafka.bootstrap.servers": "localhost:1"}
SECRET = "open sesame"
LOGIN = {
    **BROKER,
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="alice" password="{SECRET}";',
}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tpic": "x"}, "no option 'tpic'"),
        ({"path": "/archive"}, "no option 'path'"),
        ({"kafka.acks": "1"}, "kafka.acks|acks is not supported"),
        ({"state": "/state"}, "given together"),
        ({"writeId": "one"}, "given together"),
        ({"state": "/state", "writeId": "../other"}, "writeId"),
        ({"codec": "brotli"}, "codec is 'brotli'"),
        ({"transactionTimeout": "soon"}, "transactionTimeout"),
        ({"transactionTimeout": "0s"}, "out of range"),
        ({"createTopics": "maybe"}, "createTopics"),
        ({"createTopics": "true", "newTopicPartitions": "0"}, "newTopicPartitions"),
    ],
)
def test_an_option_that_cannot_be_right_is_refused_by_its_name(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_kafka_sink_options({**BROKER, **options}, stream=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no place to record"),
        ({"checkpointLocation": "hdfs://host/checkpoint"}, "in the checkpoint"),
        ({"state": "/state", "writeId": "one"}, "no writeId"),
        ({"checkpointLocation": "/checkpoint", "writeId": "one"}, "no writeId"),
    ],
)
def test_a_stream_that_could_not_remember_its_decisions_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_kafka_sink_options({**BROKER, **options}, stream=True)


def test_a_checkpoint_that_is_not_where_its_path_seems_to_be_is_never_taken_for_one(tmp_path: Path) -> None:
    """A path is one of Spark's default file system, which may be another than that of this machine."""
    for url in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}", "dbfs:/checkpoint"):
        source = ArchiveSource({**BROKER, "checkpointLocation": url})
        with pytest.raises(UsageError, match="cannot be reached from here") as caught:
            source.streamWriter(COLUMNS, False)
        assert "option state" in str(caught.value.hint)
    (tmp_path / "metadata").touch()
    for url in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        ArchiveSource({**BROKER, "checkpointLocation": url}).streamWriter(COLUMNS, False)


def test_options_are_understood_in_the_case_that_spark_hands_them_over_in() -> None:
    given = {
        "topic": "orders",
        "createtopics": "true",
        "newtopicpartitions": "6",
        "codec": "zstd",
        "transactiontimeout": "5m",
        "transactionalidprefix": "team",
        "queryname": "q",
        "checkpointlocation": "s3://bucket/checkpoint/",
    }
    found = parse_kafka_sink_options({**BROKER, **given}, stream=True)
    assert found.state == "s3://bucket/checkpoint/maxbrod-kafka-sink"
    assert (found.topic, found.codec, found.timeout_ms) == ("orders", Codec.ZSTD, 300_000)
    assert found.new_topics == NewTopics(partitions=6, replicas=-1)
    assert found.ids_prefix(sink_name(found.state)).startswith("team-")
    assert sink_name(found.state) == sink_name(found.state) != sink_name("/other")


def test_a_secret_is_in_no_error_and_no_repr_of_a_writer() -> None:
    writer = ArchiveSource(LOGIN).writer(COLUMNS, False)
    assert SECRET not in repr(vars(pickle.loads(cloudpickle.dumps(writer))._sink))
    for wrong in ({"kafka.sasl.mechanism": "GSSAPI"}, {"kafka.security.protocol": "SASL"}, {"kafka.acks": "all"}):
        with pytest.raises(UsageError) as caught:
            parse_kafka_sink_options({**LOGIN, **wrong}, stream=False)
        assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


def test_a_topic_is_never_overwritten() -> None:
    for make in (ArchiveSource(BROKER).writer, ArchiveSource({**BROKER, "checkpointLocation": "/x"}).streamWriter):
        with pytest.raises(UsageError, match="cannot be overwritten"):
            make(COLUMNS, True)


def decision(batch_id: int, attempt: int = 0) -> BatchDecision:
    transaction = Transaction(transactional_id="t", identity=ProducerIdentity(producer_id=2**40, epoch=3))
    filled = Filled(transaction=transaction, records={TopicPartition(topic="orders", partition=1): 7})
    return BatchDecision(batch_id=batch_id, attempt=attempt, query_id="q", filled=(filled,))


def test_a_decision_is_made_once_and_the_newest_is_found_with_what_became_of_it(tmp_path: Path) -> None:
    state = BatchDecisions(open_storage(str(tmp_path)))
    assert state.newest() is None
    state.decide(decision(9))
    assert state.newest() == (decision(9), DecisionOutcome.PENDING)
    with pytest.raises(ObjectExistsError):
        state.decide(decision(9))
    state.settle(decision(9), DecisionOutcome.VOID)
    state.settle(decision(9), DecisionOutcome.VOID)
    assert state.newest() == (decision(9), DecisionOutcome.VOID)
    state.decide(decision(9, 1))
    state.settle(decision(9, 1), DecisionOutcome.DONE)
    assert state.newest() == (decision(9, 1), DecisionOutcome.DONE)
    state.decide(decision(10))
    state.forget_before(decision(10))
    assert state.newest() == (decision(10), DecisionOutcome.PENDING)
    assert len(list(state.storage.list())) == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [("{", CorruptDataError), ("{}", CorruptDataError), ('{"format": "x/2"}', UnsupportedFormatError)],
)
def test_a_decision_that_cannot_be_read_is_never_taken_for_none(
    tmp_path: Path, text: str, error: type[Exception]
) -> None:
    state = BatchDecisions(open_storage(str(tmp_path)))
    state.storage.put(f"{decision(3).path}.json", text.encode())
    with pytest.raises(error):
        state.newest()

"""Records and their schemas: captured by a backup, restored with the same ids or mapped to others, read by serializers.

The records are written and read by Confluent's own serializers, which ask the registry for each id that they meet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import struct_pb2

import maxbrod
from maxbrod.compare.plan import Match
from maxbrod.config import Config
from maxbrod.errors import EXIT_INCOMPLETE, EXIT_REFUSED, RefusedError
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.topics import create_topic
from support.registries import RegistryDouble, record, serving
from support.schema_archives import COUNT, JSON, SchemaArchive, archived_with_registry


def raw(cluster: Cluster, topic: str, partition: int = 0) -> list[Any]:
    """The messages of a partition."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "never-committed"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[Any] = []
        while (found[-1].offset() if found else -1) < end - 1:
            found += [message for message in consumer.consume(100, timeout=1) if message.error() is None]
        return found
    finally:
        consumer.close()


def read(
    cluster: Cluster, topic: str, registry: RegistryDouble, subject_topic: str, partition: int = 0
) -> list[tuple[int, bytes, Any]]:
    """Offsets, keys and what a deserializer makes of each value; values without a schema as they are."""
    deserialize = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    found = []
    for message in raw(cluster, topic, partition):
        value = message.value()
        if value is not None and value != JSON:
            value = deserialize(value, SerializationContext(subject_topic, MessageField.VALUE, message.headers() or []))
        found.append((message.offset(), message.key(), value))
    return found


@pytest.fixture
def source(cluster: Cluster, topic: str, tmp_path: Path) -> Iterator[SchemaArchive]:
    with archived_with_registry(cluster, topic, tmp_path) as found:
        yield found


def test_restored_records_are_read_with_the_schemas_that_came_back_under_their_ids(source: SchemaArchive) -> None:
    expected = read(source.cluster, source.topic, source.registry, source.topic)
    assert [value["id"] for _, _, value in expected[:COUNT]] == [str(number) for number in range(COUNT)]
    with serving() as target:
        report = source.restore(target, suffix="-same")
        assert report.complete
        assert report.schemas.registered == 3
        assert target.listing() == source.registry.listing()
        assert target.modes == {"": "READWRITE"}
        assert read(source.cluster, f"{source.topic}-same", target, source.topic) == expected
        assert source.compare(target, suffix="-same").equal
        target.soft_delete("before", 1)
        compared = source.compare(target, suffix="-same")
        assert not compared.equal
        assert compared.schemas.differences == ("before version 1: it is soft-deleted in the target",)


def test_mapped_records_keep_their_offsets_and_are_read_with_the_ids_of_the_target(source: SchemaArchive) -> None:
    expected = read(source.cluster, source.topic, source.registry, source.topic)
    name = f"{source.topic}-mapped"
    with serving(RegistryDouble(first_id=70_000)) as target:
        report = source.restore(target, suffix="-mapped", remap_schemas=True)
        assert report.complete
        assert report.schemas.remap
        ids = {struct.unpack(">bI", message.value()[:5])[1] for message in raw(source.cluster, name)[:2]}
        assert ids <= {number for number, _ in target.listing().values()}
        assert min(ids) >= 70_000
        assert read(source.cluster, name, target, source.topic) == expected
        assert source.compare(target, suffix="-mapped").equal
        # The map is compared, too: an id that means another schema in the target is found.
        changed = next(version for version in target.versions.values() if version["subject"].endswith("-value"))
        changed["schema"] = record("Order", "another")
        compared = source.compare(target, suffix="-mapped")
        assert [line.equal for line in compared.partitions] == [True]
        assert compared.schemas.different == 1
    plain = raw(source.cluster, source.topic)
    mapped = raw(source.cluster, name)
    assert [one.timestamp() for one in plain] == [one.timestamp() for one in mapped]
    assert [len(one.value() or b"") for one in plain] == [len(one.value() or b"") for one in mapped]


def test_mapped_records_are_read_from_another_number_of_partitions(source: SchemaArchive) -> None:
    expected = read(source.cluster, source.topic, source.registry, source.topic)
    with serving(RegistryDouble(first_id=70_000)) as target:
        report = source.restore(target, suffix="-three", remap_schemas=True, partition_counts={source.topic: 3})
        assert report.complete
        found = [read(source.cluster, f"{source.topic}-three", target, source.topic, number) for number in range(3)]
        compared = source.compare(target, suffix="-three")
        assert (compared.equal, {line.match for line in compared.partitions}) == (True, {Match.SET})
    assert sum(map(bool, found)) > 1, "keys are spread"
    # Within a partition the order stays.
    order = {key: place for place, (_, key, _) in enumerate(expected)}
    assert all(part == sorted(part, key=lambda one: order[one[1]]) for part in found)
    values = {key: value for part in found for _, key, value in part}
    assert values == {key: value for _, key, value in expected}


def test_mapped_protobuf_keeps_its_message_indexes_and_is_read_with_the_ids_of_the_target(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic)
    messages = [struct_pb2.Value(string_value=f"number {number}") for number in range(5)]
    with serving() as registry, serving(RegistryDouble(first_id=70_000)) as target:
        registry.register("before", record("Before", "id"))
        client = SchemaRegistryClient({"url": registry.url})
        serializer = ProtobufSerializer(struct_pb2.Value, client, {"use.deprecated.format": False})
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for message in messages:
            producer.produce(topic, serializer(message, SerializationContext(topic, MessageField.VALUE)))
        assert producer.flush(60) == 0
        source = SchemaArchive(cluster, topic, tmp_path / "archive", registry)
        assert source.back_up().complete
        assert source.restore(target, suffix="-mapped", remap_schemas=True).complete
        values = [message.value() for message in raw(cluster, f"{topic}-mapped")]
        reader = ProtobufDeserializer(struct_pb2.Value, {"use.deprecated.format": False})
        assert [reader(value, SerializationContext(topic, MessageField.VALUE)) for value in values] == messages
        ids = {struct.unpack(">bI", value[:5])[1] for value in values}
        assert ids <= {number for number, _ in target.listing().values()}
        # Value is not the first message of its file, so that its indexes are not the single 0.
        assert {value[5:7] for value in values} == {b"\x02\x02"}


def test_a_frame_without_a_captured_schema_is_refused_by_topic_and_offset(source: SchemaArchive) -> None:
    producer = Producer({"bootstrap.servers": source.cluster.bootstrap})
    producer.produce(source.topic, struct.pack(">bI", 0, 999) + b"unknown", b"k")
    assert producer.flush(60) == 0
    source.back_up()
    with serving(RegistryDouble(first_id=70_000)) as target:
        report = source.restore(target, suffix="-refused", remap_schemas=True)
        (failed,) = [one.failure for one in report.partitions if one.failure is not None]
        assert (failed["object_name"], failed["offset"]) == (f"{source.topic}-refused-0", COUNT + 2)
        assert "schema id 999" in failed["message"]
        assert report.exit_code == EXIT_REFUSED


def test_a_target_with_other_schemas_under_the_ids_refuses_before_anything_changes(source: SchemaArchive) -> None:
    with serving() as target:
        target.register("theirs", record("Theirs", "id"))
        with pytest.raises(RefusedError, match="another schema under id 1: theirs"):
            source.restore(target, suffix="-never")
        assert list(target.versions) == [("theirs", 1)]


def test_a_registry_that_does_not_answer_makes_the_run_incomplete_and_the_last_capture_stays(
    source: SchemaArchive,
) -> None:
    assert not source.back_up().schemas.changed
    source.registry.login = "Bearer something"
    report = source.back_up()
    assert report.exit_code == EXIT_INCOMPLETE
    (notice,) = [one for one in report.notices if one.kind == "registry"]
    assert "401" in notice.message
    assert "the last capture is of 2" in notice.message
    with serving() as target:
        source.restore(target, suffix="-later")
        assert target.listing() == source.registry.listing()


def test_spark_maps_ids_as_this_process_does_and_queries_decode_with_what_was_captured(
    source: SchemaArchive,
    spark: Any,
) -> None:
    expected = read(source.cluster, source.topic, source.registry, source.topic)
    on_spark = {"config": Config.model_validate({"spark": {"engine": "spark"}}), "session": spark}
    with serving(RegistryDouble(first_id=70_000)) as target:
        options: Any = {**source.place, "schema_registry": target.url, **on_spark}
        assert maxbrod.restore(**options, suffix="-spark", remap_schemas=True).complete
        assert read(source.cluster, f"{source.topic}-spark", target, source.topic) == expected
        assert maxbrod.compare(**options, suffix="-spark").equal
        chosen: Any = {"suffix": "-chosen", "remap_schemas": True, "where": "offset % 2 = 0"}
        assert maxbrod.restore(**options, **chosen).complete
        found = read(source.cluster, f"{source.topic}-chosen", target, source.topic)
        assert found == [record for record in expected if record[0] % 2 == 0], "at their own offsets"
    # The registry itself may be gone by now.
    sql = f"SELECT value.id, value.note FROM `{source.topic}` WHERE value IS NOT NULL ORDER BY offset"
    rows = maxbrod.query(source.archive, sql, session=spark, value=["confluent"], permissive=True).to_pylist()
    by_prefix = [value for number, (_, _, value) in enumerate(expected[:COUNT]) if number % 3 < 2]
    assert rows == [{"id": value["id"], "note": value.get("note", "")} for value in by_prefix]

"""Archives of records that Confluent's serializers wrote, with their registry."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import maxbrod
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.topics import create_topic
from support.backups import back_up, config_of
from support.registries import RegistryDouble, record, serving
from support.sparkless import without_spark

JSON = b'{"no": "schema"}'
COUNT = 9
"""Of these, a third has a prefix with one schema, one with another, one has the id in a header."""


@dataclass
class SchemaArchive:
    """An archive of one topic, whose registry is still there."""

    cluster: Cluster
    topic: str
    archive: Path
    registry: RegistryDouble

    def back_up(self, **request: Any) -> Any:
        request = {"schema_registry": self.registry.url, **request}
        return back_up(config_of(self.cluster, self.archive, self.topic, **request))

    @property
    def place(self) -> dict[str, Any]:
        return {"archive": self.archive, "bootstrap": self.cluster.bootstrap, "topics": [self.topic]}

    def restore(self, registry: RegistryDouble, **options: Any) -> Any:
        with without_spark():
            return maxbrod.restore(**self.place, schema_registry=registry.url, **options)

    def compare(self, registry: RegistryDouble, **options: Any) -> Any:
        with without_spark():
            return maxbrod.compare(**self.place, schema_registry=registry.url, **options)


def written(cluster: Cluster, topic: str, registry: RegistryDouble) -> None:
    """Nine records of two schemas, then one without a schema and a tombstone. Keys are numbers of eight bytes."""
    client = SchemaRegistryClient({"url": registry.url})
    texts = [record("Order", "id"), record("Order", "id", note="")]
    serializers = [
        AvroSerializer(client, text, conf={"schema.id.serializer": where})
        for text, where in (
            (texts[0], prefix_schema_id_serializer),
            (texts[1], prefix_schema_id_serializer),
            (texts[1], header_schema_id_serializer),
        )
    ]
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(COUNT):
        headers: list[tuple[str, str | bytes | None]] = []
        context = SerializationContext(topic, MessageField.VALUE, headers)
        value = serializers[number % 3]({"id": str(number), "note": "a longer note"}, context)
        producer.produce(topic, value, struct.pack(">q", number), headers=headers)
    producer.produce(topic, JSON, b"plain")
    producer.produce(topic, None, b"gone")
    assert producer.flush(60) == 0


@contextmanager
def archived_with_registry(cluster: Cluster, topic: str, folder: Path, partitions: int = 1) -> Iterator[SchemaArchive]:
    create_topic(cluster, topic, partitions=partitions)
    with serving() as registry:
        registry.register("before", record("Before", "id"))  # so that ids differ from those of an empty registry
        written(cluster, topic, registry)
        found = SchemaArchive(cluster, topic, folder / "archive", registry)
        assert found.back_up().complete
        yield found

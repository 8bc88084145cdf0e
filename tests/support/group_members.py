"""Members of groups, by clients that others have written: kafka-python, librdkafka, Kafka's own in Java."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from confluent_kafka import Consumer
from kafka import KafkaConsumer

from maxbrod.sandbox.process import wait_for

if TYPE_CHECKING:
    from support.java_oracle import JavaOracle

Seen: TypeAlias = tuple[int, int]
"""A partition and an offset."""
_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


class Member(Protocol):
    def poll(self) -> list[Seen]: ...

    def assigned(self) -> set[int]: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...


class PythonMember:
    def __init__(self, bootstrap: str, topic: str, group: str, **config: Any) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **config,
        )
        # It may join before it knows the topic's partitions, and is then given none of them.
        assert self._consumer.partitions_for_topic(topic)
        self._consumer.subscribe([topic])

    def poll(self) -> list[Seen]:
        # It forgets a join that takes longer than a poll, and joins again.
        found = self._consumer.poll(1000, max_records=20)
        return [(record.partition, record.offset) for records in found.values() for record in records]

    def assigned(self) -> set[int]:
        return {where.partition for where in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close()


class RdkafkaMember:
    def __init__(self, bootstrap: str, topic: str, group: str, config: Mapping[str, Any] | None = None) -> None:
        ours = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": True,
        }
        self._consumer = Consumer({**ours, **(config or {})})
        self._consumer.subscribe([topic])

    def poll(self) -> list[Seen]:
        messages = self._consumer.consume(20, 0.1)
        for message in messages:
            assert message.error() is None, message.error()
        return [(message.partition() or 0, message.offset() or 0) for message in messages]

    def assigned(self) -> set[int]:
        return {where.partition for where in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class JavaMember:
    def __init__(
        self, java: JavaOracle, bootstrap: str, topic: str, group: str, config: Mapping[str, str] | None = None
    ) -> None:
        values = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "key.deserializer": _BYTES,
            "value.deserializer": _BYTES,
            "max.poll.records": "20",
        }
        self._jvm = java.jvm
        properties = java.properties({**values, **(config or {})})
        self._consumer = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties)
        self._consumer.subscribe([topic])

    def poll(self) -> list[Seen]:
        found = self._consumer.poll(self._jvm.java.time.Duration.ofMillis(100))
        return [(record.partition(), record.offset()) for record in found.iterator()]

    def assigned(self) -> set[int]:
        return {where.partition() for where in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commitSync()

    def close(self) -> None:
        self._consumer.close()


def until_assigned(member: Member, count: int) -> list[Seen]:
    """Poll until it has so many partitions; what it has read meanwhile."""
    seen: list[Seen] = []

    def has_them() -> bool:
        seen.extend(member.poll())
        return len(member.assigned()) == count

    wait_for(f"a member to have {count} partitions", has_them, timeout_s=60)
    return seen


def read(members: Iterable[Member], count: int, polls_max: int = 600) -> list[Seen]:
    """Poll them in turn until they have seen so many records."""
    seen: list[Seen] = []
    group = list(members)
    for _ in range(polls_max):
        for member in group:
            seen += member.poll()
        if len(seen) >= count:
            return seen
    raise AssertionError(f"only {len(seen)} of {count} records came")

"""Reads whole topics with clients that others have written, into one form that can be compared."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition

if TYPE_CHECKING:
    from support.java_oracle import JavaOracle

GO_READERS: Final = Path(__file__).resolve().parents[2] / ".tools" / "go-readers"
"""Built by scripts/install-test-tools."""
LEVELS: Final = ("read_uncommitted", "read_committed")
_TIMEOUT_S: Final = 60


class SeenRecord(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: str | None
    """Its SHA-256: a megabyte is not for the eye."""
    headers: tuple[tuple[str, bytes | None], ...]


Reader = Callable[[str, str, str], list[SeenRecord]]
"""From a bootstrap address, a topic and an isolation level."""


def digest(value: bytes | None) -> str | None:
    return None if value is None else hashlib.sha256(value).hexdigest()


def java_reader(java: JavaOracle) -> Reader:
    def read(bootstrap: str, topic: str, level: str) -> list[SeenRecord]:
        return sorted(
            SeenRecord(
                number, record.offset or 0, record.timestamp_ms, record.key, digest(record.value), record.headers
            )
            for number, record in java.consume_all(bootstrap, topic, isolation_level=level)
        )

    return read


def read_with_librdkafka(bootstrap: str, topic: str, level: str) -> list[SeenRecord]:
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": "reads-all",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": level,
    }
    consumer = Consumer(config)
    try:
        left = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, -2) for number in left])
        seen: list[SeenRecord] = []
        silent = 0
        while left:
            # It waits until all of so many are there, or for so long.
            messages = consumer.consume(500, 0.5)
            silent = 0 if messages else silent + 1
            assert silent < 2 * _TIMEOUT_S, f"nothing more comes of the partitions {left}"
            for message in messages:
                error = message.error()
                if error is not None:
                    assert error.name() == "_PARTITION_EOF", error
                    left.discard(message.partition())
                    continue
                seen.append(
                    SeenRecord(
                        message.partition() or 0,
                        message.offset() or 0,
                        message.timestamp()[1],
                        message.key(),
                        digest(message.value()),
                        _pairs(message.headers()),
                    )
                )
        return sorted(seen)
    finally:
        consumer.close()


def _pairs(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, value) for name, value in headers or ())


def read_with_kcat(bootstrap: str, topic: str, level: str) -> list[SeenRecord]:
    program = shutil.which("kcat") or shutil.which("kafkacat")
    assert program is not None
    # Lengths first: keys, values and headers may hold any byte.
    layout = "%p %o %T %K %S\n%k%s\n"
    words = ["-b", bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-X", f"isolation.level={level}"]
    told = subprocess.run([program, *words, "-f", layout], capture_output=True, check=True, timeout=_TIMEOUT_S)
    seen, at = [], 0
    while at < len(told.stdout):
        end = told.stdout.index(b"\n", at)
        partition, offset, timestamp, key_size, size = map(int, told.stdout[at:end].split())
        key_end = end + 1 + max(key_size, 0)
        value_end = key_end + max(size, 0)
        key = None if key_size < 0 else told.stdout[end + 1 : key_end]
        value = None if size < 0 else told.stdout[key_end:value_end]
        seen.append(SeenRecord(partition, offset, timestamp, key, digest(value), ()))
        at = value_end + 1
    return sorted(seen)


def read_with_franz_go(bootstrap: str, topic: str, level: str) -> list[SeenRecord]:
    return sorted(map(_line, _go("franz-go", bootstrap, topic, level)))


def read_with_sarama(bootstrap: str, topic: str, level: str, *, expected: int) -> list[SeenRecord]:
    """It does not tell that a log ends: when as many have come as are expected, more would come at once."""
    return sorted(map(_line, _go("sarama", bootstrap, topic, level, str(expected))))


def read_as_go_group(bootstrap: str, topic: str, group: str, count: int) -> list[tuple[int, int]]:
    """Read so many records as a member of a group, commit, and leave."""
    return [_line(line)[:2] for line in _go("franz-go-group", bootstrap, topic, group, str(count))]


def _go(*words: str) -> list[str]:
    told = subprocess.run([GO_READERS, *words], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout.splitlines()


def _line(line: str) -> SeenRecord:
    partition, offset, timestamp, key, value, headers = line.split(" ")
    pairs = [pair.split("=") for pair in headers[1:-1].split(",") if pair]
    return SeenRecord(
        int(partition),
        int(offset),
        int(timestamp),
        _bytes(key),
        None if value == "-" else value,
        tuple((name, _bytes(text)) for name, text in pairs),
    )


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text[1:])


def without_headers(records: Iterable[SeenRecord]) -> list[SeenRecord]:
    return [record._replace(headers=()) for record in records]

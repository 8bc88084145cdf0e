"""What producers got acknowledged, record by record: the truth that archives are held against."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa

from maxbrod.model import Codec, topic_id_text
from maxbrod.sandbox.events import encoded_batches, produce_batches
from maxbrod.sandbox.topics import topic_id
from maxbrod.sandbox.traffic import Message, produce, produce_transaction
from support.plain_log import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxbrod.sandbox.cluster import Cluster

NOW_MS = 1_760_000_000_000
CODECS = (Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD)
_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))),
    ]
)


def odd_records(count: int, *, seed: int = 0, value_bytes: int = 60) -> list[Record]:
    """Null and empty in every place, times out of order, headers that repeat: what a copy likes to lose."""
    draw = random.Random(seed)

    def blob(most: int) -> bytes | None:
        return draw.choice((None, b"", draw.randbytes(most // 2), draw.randbytes(most)))

    return [
        Record(
            NOW_MS + draw.randrange(-(10**11), 10**6),
            blob(12),
            blob(value_bytes),
            tuple((draw.choice((b"", b"h", b"trace")), blob(8)) for _ in range(draw.choice((0, 0, 1, 3)))),
        )
        for _ in range(count)
    ]


class Ledger:
    """By topic id and partition, then by offset."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], dict[int, Record]] = {}

    def write(
        self,
        cluster: Cluster,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        batch: int = 50,
        in_a_row: int = 1,
        seed: int | None = None,
        value_bytes: int = 60,
        codec: Codec | None = None,
    ) -> None:
        """Odd records in batches, each acknowledged. Codecs take turns, after `in_a_row` batches of one."""
        seed = self._seed() if seed is None else seed
        written = odd_records(count, seed=seed, value_bytes=value_bytes)
        parts = [written[first : first + batch] for first in range(0, count, batch)]
        encoded: list[bytes] = []
        for turn, part in enumerate(parts):
            chosen = CODECS[turn // in_a_row % len(CODECS)] if codec is None else codec
            (one,) = encoded_batches(_columns(part), chosen)
            encoded.append(one)
        bases = produce_batches(cluster, topic, encoded, partition=partition)
        acknowledged = [base + at for base, part in zip(bases, parts, strict=True) for at in range(len(part))]
        self.note(cluster, topic, acknowledged, written, partition=partition)

    def produce(self, cluster: Cluster, topic: str, messages: Sequence[Message], *, partition: int = 0) -> list[int]:
        """Through Kafka's usual producer."""
        sent = dated(messages)
        acknowledged = produce(cluster, topic, sent, partition=partition)
        self.note(cluster, topic, acknowledged, map(as_record, sent), partition=partition)
        return acknowledged

    def transact(
        self, cluster: Cluster, topic: str, messages: Sequence[Message], *, partition: int = 0, commit: bool
    ) -> None:
        """In one transaction, whose marker is in the log when this returns."""
        sent = dated(messages)
        transactional_id = f"{topic}-{len(self.records)}-{self._seed()}-{commit}"
        at = produce_transaction(
            cluster, topic, sent, transactional_id=transactional_id, partition=partition, commit=commit
        )
        if commit:
            self.note(cluster, topic, at, map(as_record, sent), partition=partition)

    def note(
        self,
        cluster: Cluster,
        topic: str,
        acknowledged: Iterable[int],
        records: Iterable[Record],
        *,
        partition: int = 0,
    ) -> None:
        held = self.of(cluster, topic, partition)
        for offset, record in zip(acknowledged, records, strict=True):
            assert offset not in held
            held[offset] = record

    def of(self, cluster: Cluster, topic: str, partition: int = 0) -> dict[int, Record]:
        return self.records.setdefault((topic_id_text(topic_id(cluster, topic)), partition), {})

    def forget(self, key: tuple[str, int], offsets: Iterable[int]) -> None:
        """What the cluster lost: retention, truncation, damage."""
        for offset in list(offsets):
            self.records[key].pop(offset, None)

    def _seed(self) -> int:
        return sum(map(len, self.records.values()))


def dated(messages: Iterable[Message]) -> list[Message]:
    """With times that are told, so that they can be compared."""
    return [message._replace(timestamp_ms=NOW_MS + turn) for turn, message in enumerate(messages)]


def as_record(message: Message) -> Record:
    assert message.timestamp_ms is not None
    headers = tuple((name.encode(), value) for name, value in message.headers)
    return Record(message.timestamp_ms, message.key, message.value, headers)


def _columns(records: Sequence[Record]) -> pa.RecordBatch:
    rows = [
        {
            "offset": number,
            "timestamp_ms": record.timestamp_ms,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
        }
        for number, record in enumerate(records)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)

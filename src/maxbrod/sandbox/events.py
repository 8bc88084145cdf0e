"""Realistic records for the demo and the benchmarks: made by columns, written as whole batches, counted from logs.

The seed determines everything, so that two runs give the same bytes. Unlike `traffic` it handles no single records, so
hundreds of thousands take a second.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from maxbrod.batch.columns import binary_array, binary_column, headers_array
from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import BatchHeaders, walk
from maxbrod.batch.patch import patch
from maxbrod.batch.transactions import committed_records, from_markers
from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.model import Codec
from maxbrod.sandbox.process import HOST
from maxbrod.sandbox.topics import ask, replicas

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.sandbox.cluster import Cluster


FIRST_TIMESTAMP_MS: Final = 1_760_000_000_000
INTERVAL_MS: Final = 3
CUSTOMERS: Final = 20_000

_COUNTRIES: Final = ("AT", "CH", "CZ", "DE", "FR", "IL", "IT", "US")
_STATES: Final = ("created", "paid", "packed", "shipped", "delivered")
_PAGES: Final = ("/", "/search", "/cart", "/checkout", "/help", "/product/17", "/product/4711")


def orders(count: int, *, seed: int = 1, first_timestamp_ms: int = FIRST_TIMESTAMP_MS) -> pa.RecordBatch:
    """JSON of about 270 bytes under the customer's key, a trace header on every third record."""
    rng = np.random.default_rng(seed)
    customer = rng.integers(0, CUSTOMERS, count)
    value = _joined(
        '{"order_id":"', _hex(rng, count), '","state":"', _pick(rng, _STATES, count),
        '","customer":{"id":', _text(customer), ',"country":"', _pick(rng, _COUNTRIES, count),
        '"},"currency":"CHF","amount":', _cents(rng, 100_000, count),
        ',"lines":[{"sku":"SKU-', _number(rng, 99_999, count), '","quantity":', _number(rng, 9, count),
        '},{"sku":"SKU-', _number(rng, 99_999, count), '","quantity":', _number(rng, 9, count),
        '}],"warehouse":"', _pick(rng, ("Basel", "Praha", "Wien"), count),
        '","created_at":', _text(_times(rng, count, first_timestamp_ms)), "}",
    )  # fmt: skip
    return _records(rng, _joined("customer-", _text(customer)), value, first_timestamp_ms, traced_each=3)


def clicks(count: int, *, seed: int = 2, first_timestamp_ms: int = FIRST_TIMESTAMP_MS) -> pa.RecordBatch:
    """Without a key, with a trace header on every record."""
    rng = np.random.default_rng(seed)
    value = _joined(
        '{"page":"', _pick(rng, _PAGES, count), '","session":"', _hex(rng, count),
        '","millis":', _number(rng, 5_000, count), "}",
    )  # fmt: skip
    return _records(rng, pa.nulls(count, pa.binary()), value, first_timestamp_ms, traced_each=1)


def customers(count: int, *, seed: int = 3, first_timestamp_ms: int = FIRST_TIMESTAMP_MS) -> pa.RecordBatch:
    """Changes of customers, for a compacted topic: keys repeat, and one record in twenty is a tombstone."""
    rng = np.random.default_rng(seed)
    customer = rng.integers(0, max(1, count // 10), count)
    value = _joined(
        '{"name":"Josef ', _number(rng, 999, count), '","country":"', _pick(rng, _COUNTRIES, count),
        '","balance":', _cents(rng, 1_000_000, count), "}",
    )  # fmt: skip
    gone = pa.array(rng.random(count) < 0.05)
    value = pc.if_else(gone, pa.scalar(None, pa.binary()), value)
    return _records(rng, _joined("customer-", _text(customer)), value, first_timestamp_ms, traced_each=0)


def split(records: pa.RecordBatch, partitions: int) -> list[pa.RecordBatch]:
    """Distribute records over partitions, each with offsets from 0: by key, or in turn without a key."""
    codes = pc.dictionary_encode(records.column("key")).indices
    turn = np.arange(records.num_rows)
    row = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False)
    target = np.where(row >= 0, row, turn) % partitions
    dealt = [records.filter(pa.array(target == partition)) for partition in range(partitions)]
    return [part.set_column(0, "offset", pa.array(np.arange(part.num_rows, dtype=np.int64))) for part in dealt]


def _records(
    rng: np.random.Generator, key: pa.Array, value: pa.Array, first_timestamp_ms: int, *, traced_each: int
) -> pa.RecordBatch:
    count = len(value)
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(np.arange(count, dtype=np.int64)),
            "timestamp_ms": pa.array(_times(rng, count, first_timestamp_ms)),
            "key": key,
            "value": value,
            "headers": _trace_headers(rng, count, traced_each),
        }
    )


def _times(rng: np.random.Generator, count: int, first_timestamp_ms: int) -> NDArray[np.int64]:
    """A record every INTERVAL_MS, some of them late: timestamps of a real topic are not in order."""
    late = np.where(rng.random(count) < 0.01, rng.integers(0, 60_000, count), 0)
    return first_timestamp_ms + np.arange(count, dtype=np.int64) * INTERVAL_MS - late


def _trace_headers(rng: np.random.Generator, count: int, every: int) -> pa.Array:
    traced = np.arange(count) % every == 0 if every else np.zeros(count, np.bool_)
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(traced, dtype=np.int32)])
    total = int(ends[-1])
    name = np.frombuffer(b"trace-id", np.uint8)
    keys = binary_array(np.arange(total + 1, dtype=np.int32) * len(name), np.tile(name, total), None)
    values = binary_array(np.arange(total + 1, dtype=np.int32) * 16, rng.integers(0, 256, total * 16, np.uint8), None)
    return headers_array(ends, keys, values)


def _joined(*parts: str | pa.Array) -> pa.Array:
    """The parts of every row, one after another, as bytes."""
    joined = pc.binary_join_element_wise(*parts, "")
    column = binary_column(joined.cast(pa.binary()))
    return binary_array(column.ends, column.data, None)


def _text(numbers: NDArray[np.int64]) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _number(rng: np.random.Generator, largest: int, count: int) -> pa.Array:
    return _text(rng.integers(1, largest + 1, count))


def _pick(rng: np.random.Generator, choices: Sequence[str], count: int) -> pa.Array:
    return pa.array(choices).take(pa.array(rng.integers(0, len(choices), count)))


def _cents(rng: np.random.Generator, cents_max: int, count: int) -> pa.Array:
    cents = rng.integers(0, cents_max, count)
    return pc.binary_join_element_wise(_text(cents // 100), pc.utf8_lpad(_text(cents % 100), 2, "0"), ".")


def _hex(rng: np.random.Generator, count: int) -> pa.Array:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[rng.integers(0, 16, count * 16)]
    return binary_array(np.arange(count + 1, dtype=np.int32) * 16, digits, None).cast(pa.string())


_TIMEOUT_S: Final = 60
_PAUSE_S: Final = 0.1
_ELSEWHERE: Final = (3, 5, 6)  # unknown topic, no leader, another leader: a broker that has just come back
_VERSION: Final = 9  # the last one that names topics by name


def produce_records(
    cluster: Cluster, topic: str, records: pa.RecordBatch, *, partition: int = 0, codec: Codec = Codec.LZ4
) -> int:
    """Append all records to a partition in batches of up to a megabyte, each acknowledged; returns how many."""
    produce_batches(cluster, topic, encoded_batches(records, codec), partition=partition)
    return int(records.num_rows)


def encoded_batches(records: pa.RecordBatch, codec: Codec) -> list[bytes]:
    """Records in batches of up to a megabyte, with base offset 0: the broker assigns offsets itself."""
    data = encode(records, codec=codec)
    headers = patch(data, walk(data, check_crc=False), base_offset=0)
    spans = zip(headers.position.tolist(), headers.size.tolist(), strict=True)
    return [data[start : start + size].tobytes() for start, size in spans]


def produce_batches(cluster: Cluster, topic: str, batches: Sequence[bytes], *, partition: int = 0) -> list[int]:
    """Append batches to a partition, one after another; returns the base offset that the broker gave to each."""
    deadline = time.monotonic() + _TIMEOUT_S
    offsets: list[int] = []
    while len(offsets) < len(batches):
        leader = replicas(cluster, topic, partition).leader
        if leader is None:
            raise UnavailableError("the partition has no leader", object_name=f"{topic}-{partition}")
        with socket.create_connection((HOST, cluster.port(leader)), timeout=_TIMEOUT_S) as connection:
            for batch in batches[len(offsets) :]:
                error, offset = _produce(connection, topic, partition, batch)
                if error:
                    break
                offsets.append(offset)
        # A broker that is not the leader refuses before it writes anything, so the batch can be sent again.
        if error and (error not in _ELSEWHERE or time.monotonic() > deadline):
            message = f"the broker refused a batch with error {error}"
            raise MaxbrodError(message, operation="produce", object_name=f"{topic}-{partition}")
        if error:
            time.sleep(_PAUSE_S)
    return offsets


def _produce(connection: socket.socket, topic: str, partition: int, batch: bytes) -> tuple[int, int]:
    """Send one batch; returns the broker's error code and the offset of its first record."""
    topic_class = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=_TIMEOUT_S * 1000,
        topic_data=[
            topic_class(name=topic, partition_data=[topic_class.PartitionProduceData(index=partition, records=batch)])
        ],
        version=_VERSION,
    )
    answer = ask(connection, request, ProduceResponse).responses[0].partition_responses[0]
    return int(answer.error_code), int(answer.base_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInventory:
    """All partitions of a topic together. `records` are those that a read_committed consumer sees."""

    topic: str
    partitions: int
    records: int
    without_key: int
    tombstones: int
    with_headers: int
    aborted: int
    markers: int
    bytes: int
    codecs: tuple[str, ...]
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None


def broker_logs(cluster: Cluster, topic: str, *, partitions: int) -> list[bytes]:
    """The log of each partition as its leader has it on disk."""
    found = []
    for number in range(partitions):
        leader = replicas(cluster, topic, number).leader
        folder = cluster.log_dir(leader or cluster.broker_ids[0]) / f"{topic}-{number}"
        found.append(b"".join(log.read_bytes() for log in sorted(folder.glob("*.log"))))
    return found


def take_inventory(topic: str, logs: Sequence[bytes]) -> TopicInventory:
    """Count the records of a topic, from one log for each partition."""
    counts: Counter[str] = Counter()
    codecs: set[str] = set()
    times: list[int] = []
    for partition, log in enumerate(logs):
        headers = walk(log, object_name=f"{topic}-{partition}")
        counts.update(_count(log, headers, times))
        codecs.update(Codec(code).name.lower() for code in np.unique(headers.codec[~headers.control]))
    return TopicInventory(
        topic=topic,
        partitions=len(logs),
        **counts,
        codecs=tuple(sorted(codecs)),
        first_timestamp_ms=min(times, default=None),
        last_timestamp_ms=max(times, default=None),
    )


def _count(log: bytes, headers: BatchHeaders, times: list[int]) -> dict[str, int]:
    """The counts of one partition; adds its first and last timestamp to `times`."""
    records = decode(log, headers, columns=["timestamp_ms", "key", "value", "headers", "control"])
    visible = records.filter(committed_records(headers, from_markers(log, headers).aborted))
    if visible.num_rows:
        timestamps = visible.column("timestamp_ms").to_numpy()
        times += [int(timestamps.min()), int(timestamps.max())]
    markers = int(np.count_nonzero(records.column("control").to_numpy(zero_copy_only=False)))
    return {
        "records": visible.num_rows,
        "without_key": visible.column("key").null_count,
        "tombstones": visible.column("value").null_count,
        "with_headers": int(np.count_nonzero(np.diff(visible.column("headers").offsets.to_numpy()))),
        "aborted": records.num_rows - markers - visible.num_rows,
        "markers": markers,
        "bytes": len(log),
    }

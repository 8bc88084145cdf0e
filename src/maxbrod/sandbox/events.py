"""Realistic records for the demo and the benchmarks, made column by column: hundreds of thousands take a second.

The seed determines everything, so that two runs give the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.columns import binary_array, binary_column, headers_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

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


def _trace_headers(rng: np.random.Generator, count: int, each: int) -> pa.Array:
    traced = np.arange(count) % each == 0 if each else np.zeros(count, np.bool_)
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(traced, dtype=np.int32)])
    total = int(ends[-1])
    keys = binary_array(*_constant(b"trace-id", total), None)
    values = binary_array(np.arange(total + 1, dtype=np.int32) * 16, rng.integers(0, 256, total * 16, np.uint8), None)
    return headers_array(ends, keys, values)


def _constant(text: bytes, count: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    return np.arange(count + 1, dtype=np.int32) * len(text), np.tile(np.frombuffer(text, np.uint8), count)


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

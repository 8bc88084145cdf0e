"""Rows for tests: plausible ones on demand, any at all for hypothesis, and a million at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from maxbrod.bounds import PARTITIONS_MAX
from maxbrod.catalog.commits import widen
from maxbrod.catalog.rows import Gap, Row, Run, Segment
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.model import AbortedTransaction, GapReason

TOPIC_ID: Final = "IVh0Kk5nQSuv3NqX3lZ3BA"
INT64_MAX: Final = 2**63 - 1


def segment(base: int, end: int, **changes: Any) -> Segment:
    size = min(100 * (end - base), 2**40)
    values: dict[str, Any] = {
        "topic": "orders",
        "topic_id": TOPIC_ID,
        "partition": 0,
        "base_offset": base,
        "end_offset": end,
        "path": f"segments/orders/{TOPIC_ID}/0/{base:020}-5f3a.log",
        "position": 0,
        "bytes": size,
        "raw_bytes": size,
        "codec": "lz4",
        "records": end - base,
        "min_timestamp": min(1_700_000_000_000 + base, INT64_MAX),
        "max_timestamp": min(1_700_000_000_000 + end - 1, INT64_MAX),
        "first_leader_epoch": 3,
        "last_leader_epoch": 3,
        "digest": "crc32c:00000000",
        "run_id": "run-1",
        "written_at": 1_700_000_100_123,
    }
    return Segment(**{**values, **changes})


def gap(base: int, end: int, **changes: Any) -> Gap:
    values: dict[str, Any] = {
        "topic": "orders",
        "topic_id": TOPIC_ID,
        "partition": 0,
        "base_offset": base,
        "end_offset": end,
        "reason": GapReason.RETENTION,
        "run_id": "run-1",
        "written_at": 1_700_000_100_123,
    }
    return Gap(**{**values, **changes})


def run(run_id: str, **changes: Any) -> Run:
    values: dict[str, Any] = {
        "run_id": run_id,
        "started_at": 1_700_000_000_001,
        "finished_at": 1_700_000_100_002,
        "snapshot": f"snapshots/{run_id}.json.zst",
        "statistics": {"records": 10},
        "written_at": 1_700_000_100_123,
    }
    return Run(**{**values, **changes})


_int64 = st.integers(-(2**63), INT64_MAX)
_natural = st.integers(0, INT64_MAX)
_int32 = st.integers(-(2**31), 2**31 - 1)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# Characters that hide in a text or turn its direction.
_hidden = "".join(map(chr, (*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x206A), 0xFEFF)))
# What can be the name of anything: no slash, nothing that a terminal would act on, nothing that is not seen.
_visible = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=f"/\\{_hidden}")
_name = st.text(_visible, min_size=1, max_size=12)
_path = st.lists(_name.filter(lambda part: part not in {".", "..", ".maxbrod-tmp"}), min_size=1, max_size=3).map(
    "/".join
)
_size = st.integers(0, 2**58)
"""Several of them have 64 bits together."""
_ranges = st.tuples(_size, _size).filter(lambda pair: pair[0] != pair[1]).map(sorted)
_aborted = st.builds(AbortedTransaction, producer_id=_int64, first_offset=_int64, last_offset=_int64)
_json = st.recursive(
    st.none() | st.booleans() | _int64 | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    base, end = draw(_ranges)
    where: dict[str, Any] = {
        "topic": draw(_name),
        "topic_id": draw(_name),
        "partition": draw(st.integers(0, PARTITIONS_MAX - 1)),
    }
    when: dict[str, Any] = {"run_id": draw(_name), "written_at": draw(_int64)}
    match draw(st.sampled_from(Kind)):
        case Kind.GAP:
            reason = draw(st.sampled_from(GapReason))
            return Gap(**where, **when, base_offset=base, end_offset=end, reason=reason)
        case Kind.RUN:
            statistics = draw(st.dictionaries(_text, _json, max_size=3))
            times: dict[str, Any] = {"started_at": draw(_int64), "finished_at": draw(_int64)}
            return Run(**when, **times, snapshot=draw(st.none() | _path), statistics=statistics)
    slices: dict[str, Any] = {
        "path": draw(_path),
        "position": draw(_size),
        "bytes": 1 + draw(_size),
    }
    records = draw(st.integers(0, end - base))
    return Segment(
        **where,
        **when,
        **slices,
        base_offset=base,
        end_offset=end,
        raw_bytes=draw(_size),
        codec=draw(_text),
        records=records,
        min_timestamp=draw(st.none() | _int64),
        max_timestamp=draw(st.none() | _int64),
        first_leader_epoch=draw(_int32),
        last_leader_epoch=draw(_int32),
        aborted=tuple(draw(st.lists(_aborted, max_size=3))),
        digest=draw(_text),
        level=draw(_int32),
        min_timestamp_exact=draw(st.booleans()),
        control_records=draw(st.none() | st.integers(0, records)),
    )


def many_segments(partitions: int, each: int) -> pa.Table:
    """`partitions` * `each` rows that tile, 1,000 offsets a row, in no good order."""
    count = partitions * each
    partition = np.tile(np.arange(partitions), each)
    base = np.repeat(np.arange(each) * 1000, partitions)
    topic = np.array([f"topic-{number:05}" for number in range(-(-partitions // 100))])[partition // 100]
    columns = {
        "topic": pa.array(topic),
        "topic_id": pa.array(topic),
        "partition": pa.array(partition % 100, pa.int32()),
        "base_offset": pa.array(base),
        "end_offset": pa.array(base + 1000),
        "path": pa.array(topic),
        "position": pa.array(base),
        "digest": pa.array(topic),
        "last_leader_epoch": pa.array(np.zeros(count), pa.int32()),
    }
    for name, value in (
        *(("kind", "data"), ("bytes", 100_000), ("run_id", "run-1"), ("written_at", 1), ("raw_bytes", 100_000)),
        *(("codec", "lz4"), ("records", 1000), ("first_leader_epoch", 0), ("level", 0)),
    ):
        columns[name] = pa.array(np.full(count, value), SCHEMA.field(name).type)
    return widen(pa.table(columns), SCHEMA)

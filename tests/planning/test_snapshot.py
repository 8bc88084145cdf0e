"""A snapshot comes back as it was, is small, and damage to it is named."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.catalog.rows import PartitionId
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.planning.snapshot import Snapshot, decode, encode

INT64_MAX = 2**63 - 1

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), INT64_MAX) | _text | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "Infinity" not in json.dumps(value))
_partitions = st.builds(PartitionId, topic_id=_text, partition=st.integers(0, 300))
_numbers = st.dictionaries(_partitions, st.integers(0, INT64_MAX), max_size=8)
_points = st.dictionaries(_partitions, st.none() | st.integers(0, INT64_MAX), max_size=8)
_snapshots = st.builds(
    Snapshot,
    run_id=_text,
    taken_at_ms=st.integers(-(2**63), INT64_MAX),
    cluster=st.dictionaries(_text, _json, max_size=3),
    ends=_numbers,
    topics=st.dictionaries(_text, _text, max_size=3),
    recovery_points=_points,
    behind=_points,
    log_starts=_numbers,
    revisions=_numbers,
)

SNAPSHOT = Snapshot(
    run_id="run-7",
    taken_at_ms=1_700_000_000_001,
    cluster={"topics": [{"name": "orders"}]},
    ends={PartitionId(topic_id="a", partition=2): 17, PartitionId(topic_id="a", partition=0): INT64_MAX},
    topics={"a": "orders"},
)


def packed(document: Any) -> bytes:
    return bytes(cramjam.zstd.compress(json.dumps(document).encode()))


@given(_snapshots)
def test_a_snapshot_comes_back_as_it_was(snapshot: Snapshot) -> None:
    assert decode(encode(snapshot)) == snapshot


def test_the_same_snapshot_always_has_the_same_bytes() -> None:
    one = replace(SNAPSHOT, cluster={"a": 1, "b": 2}, topics={"a": "orders", "b": "payments"})
    other = replace(
        SNAPSHOT,
        cluster={"b": 2, "a": 1},
        topics={"b": "payments", "a": "orders"},
        ends=dict(reversed(list(SNAPSHOT.ends.items()))),
    )
    assert encode(one) == encode(other)


def test_a_snapshot_is_plain_json_in_zstd() -> None:
    document = json.loads(bytes(cramjam.zstd.decompress(encode(SNAPSHOT))))
    assert document["maxbrod.snapshot"] == 1
    assert document["ends"] == {"a": [INT64_MAX, None, 17]}


def test_no_damaged_byte_of_a_snapshot_goes_unnoticed() -> None:
    data = encode(SNAPSHOT)
    for place in range(len(data)):
        for bit in (0x01, 0x80):
            damaged = bytearray(data)
            damaged[place] ^= bit
            with suppress(CorruptDataError, UnsupportedFormatError):
                # A flipped bit may change nothing: of a frame's header, say.
                assert decode(bytes(damaged)) == SNAPSHOT
    for length in range(len(data)):
        with pytest.raises(CorruptDataError) as caught:
            decode(data[:length], object_name="snapshots/run-7.json.zst")
        assert caught.value.object_name == "snapshots/run-7.json.zst"


@pytest.mark.parametrize(
    "document", [{}, {"maxbrod.snapshot": 2}, {"maxbrod.snapshot": "1"}, {"maxbrod.snapshot": True}]
)
def test_another_version_of_a_snapshot_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(UnsupportedFormatError):
        decode(packed(document))


@pytest.mark.parametrize("document", [[], 1, None, {"maxbrod.snapshot": 1}])
def test_json_that_is_no_snapshot_is_corrupt(document: object) -> None:
    with pytest.raises(CorruptDataError):
        decode(packed(document))


def test_a_hundred_thousand_ends_are_stored_compactly() -> None:
    ends = {
        PartitionId(topic_id=f"topic-{number // 100:04}", partition=number % 100): number * 7919
        for number in range(100_000)
    }
    snapshot = Snapshot(run_id="r", taken_at_ms=0, cluster={}, ends=ends, topics={})
    data = encode(snapshot)
    assert len(data) < 1 << 20
    assert decode(data).ends == ends

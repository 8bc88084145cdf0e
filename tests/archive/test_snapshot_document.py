"""A snapshot comes back as it was, is small, and damage to it is named."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.archive.snapshot_document import Snapshot, decode, encode
from maxbrod.batch.crc import crc32c
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.kafka.state.cluster_state import (
    Acl,
    Broker,
    ClusterState,
    CommittedOffset,
    Group,
    MissingState,
    Quota,
    QuotaEntity,
    ScramUser,
    TopicState,
    decode_state,
    encode_state,
)
from maxbrod.model import PartitionId
from support.snapshots import INT64_MAX, SNAPSHOT, _json, snapshots


@given(snapshots)
def test_numbers_of_partitions_are_read_as_a_dictionary_has_them(snapshot: Snapshot) -> None:
    decoded = decode(encode(snapshot))
    for name in ("ends", "recovery_points", "behind", "log_starts", "revisions"):
        numbers, expected = getattr(decoded, name), getattr(snapshot, name)
        assert (dict(numbers), dict(numbers.items()), len(numbers)) == (expected, expected, len(expected))
        assert sorted(map(str, numbers.values())) == sorted(map(str, expected.values()))
        assert all(each in numbers and numbers[each] == number for each, number in expected.items())
        beyond = PartitionId(topic_id="t", partition=301)
        assert beyond not in numbers
        assert numbers.get(beyond, 5) == 5
        assert numbers.has_same_partitions(expected)
        assert not numbers.has_same_partitions({**expected, beyond: 1})


def packed(document: Any) -> bytes:
    return bytes(cramjam.zstd.compress(json.dumps(document).encode()))


@given(snapshots)
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


STATE = ClusterState(
    cluster_id="c",
    taken_at_ms=1,
    brokers=(Broker(node_id=1, host="h", port=9092),),
    topics=(
        TopicState(
            name="orders",
            topic_id="a",
            internal=False,
            replicas=((1,), (1,)),
            configs={"retention.ms": "1", "secret": None},
            effective={"cleanup.policy": "delete"},
        ),
    ),
    acls=(
        Acl(
            resource_type="TOPIC",
            resource_name="orders",
            pattern_type="LITERAL",
            principal="User:a",
            host="*",
            operation="READ",
            permission="ALLOW",
        ),
    ),
    quotas=(Quota(entities=(QuotaEntity(type="user", name=None),), values={"producer_byte_rate": 1.5}),),
    users=(ScramUser(name="u", mechanism="SCRAM-SHA-256", iterations=4096),),
    groups=(
        Group(
            group_id="g",
            type="classic",
            state="Empty",
            protocol_type="consumer",
            offsets=(
                CommittedOffset(topic="orders", topic_id="a", partition=0, offset=1, leader_epoch=-1, metadata=None),
            ),
        ),
    ),
    gaps=(MissingState(what="w", why="y", hint="h"),),
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document, except those that say its format."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(each for key, value in inner if key not in _FORMATS for each in places(value, (*path, key)))]


_FORMATS = {"format", "maxbrod.snapshot", "crc32c"}
DOCUMENT = json.loads(
    bytes(cramjam.zstd.decompress(encode(replace(SNAPSHOT, cluster=json.loads(json.dumps(encode_state(STATE)))))))
)


def resealed(document: dict[str, Any]) -> bytes:
    """With the checksum that whoever changed it would give it."""
    plain = {key: value for key, value in document.items() if key != "crc32c"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return packed({**plain, "crc32c": f"{crc32c(np.frombuffer(text.encode(), np.uint8)):08x}"})


@given(st.sampled_from(places(DOCUMENT)[1:]), _json | st.just("gone"))
def test_whatever_stands_in_a_snapshot_it_is_admitted_whole_or_refused(place: tuple[Any, ...], value: Any) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    node = document
    for key in place[:-1]:
        node = node[key]
    if value == "gone":
        del node[place[-1]]
    else:
        node[place[-1]] = value
    with suppress(CorruptDataError):
        snapshot = decode(resealed(document), object_name="snapshots/x")
        state = decode_state(snapshot.cluster)
        # Every field has the type that it is declared with, so that all of this works.
        assert decode_state(json.loads(json.dumps(encode_state(state)))) == state
        assert all(end >= 0 for end in snapshot.ends.values())


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("ends", "a"), 5, "ends"),
        (("taken_at_ms",), "now", "taken_at_ms"),
        (("topics",), [], "topics"),
        (("cluster", "topics", 0, "replicas"), [["one"]], "topics.0.replicas"),
        (("cluster", "topics", 0, "configs"), {"retention.ms": 5}, "topics.0.configs.retention.ms"),
        (("cluster", "groups", 0, "offsets", 0, "offset"), None, "groups.0.offsets.0.offset"),
        (("cluster", "brokers", 0, "port"), "9092", "brokers.0.port"),
        (("cluster", "cluster_id"), ["c"], "cluster_id"),
    ],
)
def test_the_field_that_is_wrong_is_named(place: tuple[Any, ...], value: Any, named: str) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    node = document
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    with pytest.raises(CorruptDataError, match=named):
        decode_state(decode(resealed(document), object_name="snapshots/x").cluster)


def test_fields_that_came_later_may_be_missing_and_unknown_ones_are_passed_over() -> None:
    document = json.loads(json.dumps(DOCUMENT))
    del document["cluster"]["brokers"][0]["rack"]
    document["cluster"]["topics"][0]["colour"] = "mauve"
    assert decode_state(decode(resealed(document)).cluster) == STATE


@pytest.mark.parametrize("text", ["[" * 100_000, '{"x": ' * 100_000, '{"x": 1e999}', '{"x": NaN}', "9" * 5000])
def test_json_that_no_reader_could_bear_is_refused(text: str) -> None:
    with pytest.raises(CorruptDataError):
        decode(bytes(cramjam.zstd.compress(text.encode())))

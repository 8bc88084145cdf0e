"""A cluster's state survives its JSON whole, in one order only; what cannot be read is refused."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.kafka.state.cluster_state import (
    Acl,
    Broker,
    ClusterState,
    CommittedOffset,
    EntitySettings,
    Group,
    MissingState,
    Quota,
    QuotaEntity,
    ScramUser,
    TopicState,
    decode_state,
    encode_state,
)
from maxbrod.model import topic_id_of, topic_id_text

if TYPE_CHECKING:
    from random import Random

# Null and empty are different things; names are any text that UTF-8 can carry.
texts = st.text(st.characters(codec="utf-8"), max_size=12)
texts_or_none = st.none() | st.just("") | texts
int32s = st.integers(0, (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
ids = st.uuids().map(topic_id_text)
brokers = st.builds(Broker, node_id=int32s, host=texts, port=int32s, rack=texts_or_none)
topics = st.builds(
    TopicState,
    name=texts,
    topic_id=ids,
    internal=st.booleans(),
    replicas=st.lists(st.lists(int32s, max_size=3).map(tuple), max_size=4).map(tuple),
    configs=st.none() | st.dictionaries(texts, texts_or_none, max_size=3),
    effective=st.none() | st.dictionaries(texts, texts, max_size=3),
)
acls = st.builds(Acl, **{each.name: texts for each in fields(Acl)})
entities = st.builds(QuotaEntity, type=texts, name=texts_or_none)
floats = st.floats(allow_nan=False, allow_infinity=False)
quotas = st.builds(
    Quota,
    entities=st.lists(entities, max_size=3, unique=True).map(tuple),
    values=st.dictionaries(texts, floats, max_size=3),
)
users = st.builds(ScramUser, name=texts, mechanism=texts, iterations=int32s)
offsets = st.builds(
    CommittedOffset,
    topic=texts,
    topic_id=st.none() | ids,
    partition=int32s,
    offset=int64s,
    leader_epoch=st.integers(-1, (1 << 31) - 1),
    metadata=texts_or_none,
)
groups = st.builds(
    Group,
    group_id=texts,
    type=texts,
    state=texts,
    protocol_type=texts,
    offsets=st.none() | st.lists(offsets, max_size=4, unique_by=lambda each: each.where).map(tuple),
)
settings = st.builds(EntitySettings, kind=texts, name=texts, values=st.dictionaries(texts, texts_or_none, max_size=3))
gaps = st.builds(MissingState, what=texts, why=texts, hint=texts)
states = st.builds(
    ClusterState,
    cluster_id=texts_or_none,
    taken_at_ms=int64s,
    brokers=st.lists(brokers, max_size=3, unique_by=lambda each: each.node_id).map(tuple),
    topics=st.lists(topics, max_size=3, unique_by=lambda each: each.name).map(tuple),
    acls=st.none() | st.lists(acls, max_size=3).map(tuple),
    quotas=st.none() | st.lists(quotas, max_size=3, unique_by=lambda each: each.entities).map(tuple),
    users=st.none() | st.lists(users, max_size=3).map(tuple),
    groups=st.lists(groups, max_size=3, unique_by=lambda each: each.group_id).map(tuple),
    gaps=st.lists(gaps, max_size=3).map(tuple),
    settings=st.none() | st.lists(settings, max_size=3, unique_by=lambda each: (each.kind, each.name)).map(tuple),
    features=st.none() | st.dictionaries(texts, st.integers(0, 100), max_size=3),
)


def dumped(state: ClusterState) -> str:
    return json.dumps(encode_state(state), sort_keys=True)


@given(states)
def test_a_state_survives_its_json_whole(state: ClusterState) -> None:
    assert decode_state(json.loads(dumped(state))) == state


@given(states, st.randoms(use_true_random=False))
def test_the_order_in_which_brokers_answer_never_shows(state: ClusterState, random: Random) -> None:
    def shuffled(values: tuple[object, ...] | None) -> Any:
        return None if values is None else tuple(random.sample(values, len(values)))

    names = ("brokers", "topics", "acls", "users", "gaps", "settings")
    mixed = {name: shuffled(getattr(state, name)) for name in names}
    quotas = state.quotas and tuple(replace(each, entities=shuffled(each.entities)) for each in state.quotas)
    mixed["quotas"] = shuffled(quotas)
    mixed["groups"] = shuffled(tuple(replace(each, offsets=shuffled(each.offsets)) for each in state.groups))
    again = replace(state, **mixed)
    assert again == state
    assert dumped(again) == dumped(state)


@given(states)
def test_topics_and_groups_are_found_by_name(state: ClusterState) -> None:
    assert [state.topic(each.name) for each in state.topics] == list(state.topics)
    assert [state.group(each.group_id) for each in state.groups] == list(state.groups)
    others = {"", "z" * 20} - {each.name for each in state.topics}
    assert {state.topic(name) for name in others} <= {None}


def example(**changed: object) -> dict[str, Any]:
    topic = TopicState(
        name="t", topic_id=topic_id_text(UUID(int=7)), internal=False, replicas=((1, 2), (2,)), configs={}, effective={}
    )
    state = ClusterState(
        cluster_id="c", taken_at_ms=1, brokers=(), topics=(topic,), acls=(), quotas=(), users=(), groups=(), gaps=()
    )
    return {**encode_state(state), **changed}


def test_counts_are_told_to_whoever_reads_the_json() -> None:
    (topic,) = example()["topics"]
    assert (topic["partition_count"], topic["replication_factor"]) == (2, 1)


@pytest.mark.parametrize(("policy", "compacted"), [("delete", False), ("compact", True), ("delete,compact", True)])
def test_a_topic_tells_whether_compaction_may_leave_holes(policy: str, *, compacted: bool) -> None:
    known: dict[str, str] | None
    for known, said in (({"cleanup.policy": policy}, compacted), (None, None)):
        topic = TopicState(name="t", topic_id="", internal=False, replicas=(), configs=None, effective=known)
        assert topic.compacted is said


def test_a_state_of_another_format_is_refused_and_unknown_keys_are_passed_over() -> None:
    with pytest.raises(UnsupportedFormatError, match="maxbrod-cluster-state/2"):
        decode_state(example(format="maxbrod-cluster-state/2"))
    assert decode_state(example(later=1)) == decode_state(example())


@pytest.mark.parametrize("damage", [{"topics": [{}]}, {"groups": None}, {"brokers": ["b"]}, {"acls": 1}])
def test_a_damaged_state_is_named_as_such(damage: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError):
        decode_state(example(**damage))


@given(st.uuids())
def test_a_topic_id_is_written_as_kafka_prints_it_and_read_back(topic_id: UUID) -> None:
    text = topic_id_text(topic_id)
    assert len(text) == 22
    assert topic_id_of(text) == topic_id


def test_a_topic_id_looks_as_kafka_prints_it() -> None:
    assert topic_id_text(UUID("7094430f-83ea-4f8a-a4b7-71275fe5d9fd")) == "cJRDD4PqT4qkt3EnX-XZ_Q"


@pytest.mark.parametrize("text", ["", "abc", "cJRDD4PqT4qkt3EnX+XZ/Q", "cJRDD4PqT4qkt3EnX-XZ_Q==", "ä" * 22, "c" * 22])
def test_what_is_no_topic_id_is_refused(text: str) -> None:
    with pytest.raises(CorruptDataError, match="not a topic id"):
        topic_id_of(text)

"""What a cluster loses stays known for as long as the archive holds it, with the run that last saw it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from maxbrod.archive.knowledge import GONE, NOTHING, Carried, RunKnowledge, carry, decode_carried, encode_carried, know
from maxbrod.archive.selection import Incarnation, newest_ids
from maxbrod.errors import CorruptDataError
from maxbrod.kafka.state.cluster_state import (
    Acl,
    ClusterState,
    Group,
    Quota,
    QuotaEntity,
    ScramUser,
)
from support.cluster_states import HELD, cluster, group, offset, topic


def acl(name: str, principal: str = "User:a", pattern: str = "LITERAL", **changes: Any) -> Acl:
    values: dict[str, Any] = {"resource_type": "TOPIC", "operation": "READ", "permission": "ALLOW", **changes}
    return Acl(resource_name=name, pattern_type=pattern, principal=principal, host="*", **values)


def quota(user: str, rate: float = 1.0) -> Quota:
    return Quota(entities=(QuotaEntity(type="user", name=user),), values={"producer_byte_rate": rate})


def tell(*clusters: ClusterState, held: dict[str, str] | None = None) -> RunKnowledge:
    """What the last of these runs says, each of which has carried on what the one before told."""
    told = RunKnowledge(run_id="run-0", cluster=clusters[0])
    for number, each in enumerate(clusters[1:], 1):
        carried = carry(told, each, HELD if held is None else held)
        told = RunKnowledge(run_id=f"run-{number}", cluster=each, carried=decode_carried(through_json(carried)))
    return told


def through_json(carried: Carried) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(encode_carried(carried)))
    return document


def offsets_of(told: RunKnowledge, group_id: str) -> dict[tuple[str | None, int], int]:
    found = know(told).cluster.group(group_id)
    return {} if found is None else {(each.topic_id, each.partition): each.offset for each in found.offsets or ()}


def test_a_deleted_topic_keeps_its_configuration_through_any_number_of_runs() -> None:
    told = tell(cluster(topic("A"), topic("B")), cluster(topic("B")), cluster(topic("B")), cluster())
    known = know(told)
    assert {each.topic_id: dict(each.configs or {})["retention.ms"] for each in known.cluster.topics} == {
        "A": "A",
        "B": "B",
    }
    assert known.topic_runs == {"A": "run-0", "B": "run-2"}


def test_a_topic_that_the_archive_does_not_hold_is_not_carried() -> None:
    told = tell(cluster(topic("A"), topic("D")), cluster(), held={"A": "orders"})
    assert [each.topic.topic_id for each in told.carried.topics] == ["A"]
    assert tell(cluster(topic("A")), cluster(), cluster(), held={}).carried == NOTHING


def test_a_position_in_a_topic_that_the_archive_does_not_hold_is_not_carried() -> None:
    first = cluster(topic("A"), topic("D"), groups=(group("g", offset("A", 1), offset("D", 2)),))
    told = tell(first, cluster())
    assert [each.committed.topic_id for each in told.carried.offsets] == ["A"]


def test_what_a_run_saw_itself_comes_before_what_it_carries_on() -> None:
    """Where a document says both, as none of ours does."""
    before = tell(cluster(topic("A"), groups=(group("g", offset("A", 5)),)), cluster())
    told = replace(before, cluster=cluster(groups=(group("g", offset("A", 8)),)))
    assert [each.committed.offset for each in carry(told, cluster(), HELD).offsets] == [8]


def test_a_topic_that_is_seen_again_is_carried_no_more() -> None:
    told = tell(cluster(topic("A")), cluster(), cluster(topic("A", configs={"x": "new"})))
    assert told.carried == NOTHING
    assert know(told).topic_runs == {}


def test_a_topic_of_the_same_name_hides_nothing_and_takes_nothing() -> None:
    told = tell(
        cluster(topic("A"), groups=(group("g", offset("A", 5)),)),
        cluster(topic("C"), groups=(group("g", offset("C", 1)),)),
    )
    known = know(told)
    assert [(each.topic_id, dict(each.configs or {})) for each in known.cluster.topics] == [
        ("C", {"retention.ms": "C"}),
        ("A", {"retention.ms": "A"}),
    ]
    assert known.cluster.topic("orders") == topic("C"), "by its name it is the one that is there"
    assert offsets_of(told, "g") == {("A", 0): 5, ("C", 0): 1}
    assert known.offset_runs == {("g", "A", 0): "run-0"}


def test_of_several_that_are_gone_the_last_one_is_the_newest_whatever_clocks_said() -> None:
    told = tell(cluster(topic("C")), cluster(topic("A")), cluster())
    incarnations = [
        Incarnation(topic="orders", topic_id="C", first_written_at=2_000),
        Incarnation(topic="orders", topic_id="A", first_written_at=1_000),
    ]
    assert newest_ids(incarnations, know(told).ranks) == {"A"}
    assert newest_ids(incarnations, {}) == {"C"}, "where nobody knows, the clock is all there is"
    assert newest_ids(incarnations, {"A": 0, "C": 1}) == {"C"}


@pytest.mark.parametrize(
    "groups",
    [
        (),
        (group("g"),),
        (group("g", offset("B", 9)),),
        (group("g", readable=False),),
    ],
    ids=["deleted", "without offsets", "elsewhere", "unreadable"],
)
def test_a_position_stays_known_however_the_group_lost_it(groups: tuple[Group, ...]) -> None:
    first = cluster(topic("A"), topic("B"), groups=(group("g", offset("A", 5), offset("A", 6, 1)),))
    told = tell(first, cluster(topic("B"), groups=groups), cluster(topic("B"), groups=groups))
    found = offsets_of(told, "g")
    assert {place: at for place, at in found.items() if place[0] == "A"} == {("A", 0): 5, ("A", 1): 6}
    assert know(told).offset_runs == {("g", "A", 0): "run-0", ("g", "A", 1): "run-0"}
    state = know(told).cluster.group("g")
    assert state is not None
    assert state.state == ("Empty" if groups else GONE)


def test_the_newest_run_that_knew_a_position_has_the_last_word() -> None:
    told = tell(
        cluster(topic("A"), groups=(group("g", offset("A", 5), offset("A", 1, 1)),)),
        cluster(topic("A"), groups=(group("g", offset("A", 7)),)),
        cluster(),
    )
    assert offsets_of(told, "g") == {("A", 0): 7, ("A", 1): 1}
    assert know(told).offset_runs == {("g", "A", 0): "run-1", ("g", "A", 1): "run-0"}


def test_a_position_in_a_topic_that_is_gone_belongs_to_the_one_that_was_lost_last() -> None:
    """Kafka tells a name and no id then, and later nothing at all."""
    held = {"A": "orders", "C": "orders"}
    gone = group("g", offset(None, 8, name="orders"))
    told = tell(cluster(topic("A")), cluster(topic("C")), cluster(groups=(gone,)), cluster(), held=held)
    assert offsets_of(told, "g") == {("C", 0): 8}
    assert know(told).offset_runs == {("g", "C", 0): "run-2"}
    before = tell(cluster(topic("C"), groups=(group("g", offset("C", 7)),)), cluster(groups=(gone,)), held=held)
    assert offsets_of(before, "g") == {("C", 0): 8}
    assert know(before).offset_runs == {}, "the newest run knew it itself"


def test_a_configuration_that_could_not_be_read_is_that_of_the_last_run_that_could() -> None:
    hidden = topic("A", configs=None, effective=None)
    told = tell(cluster(topic("A")), cluster(hidden), cluster(hidden))
    known = know(told)
    assert known.cluster.topics == (topic("A"),)
    assert (known.topic_runs, known.config_runs) == ({}, {"A": "run-0"})
    gone = know(tell(cluster(topic("A")), cluster(hidden), cluster()))
    assert gone.cluster.topics == (topic("A"),)
    assert gone.topic_runs == {"A": "run-0"}


def test_rules_about_a_deleted_topic_stay_and_never_become_wider() -> None:
    rules = (acl("orders"), acl("ord", "User:b", "PREFIXED"), acl("*", "User:c"), acl("payments", "User:d"))
    told = tell(cluster(topic("A"), acls=rules), cluster(acls=()), cluster(acls=(acl("*", "User:c"),)))
    assert know(told).cluster.acls == (
        acl("*", "User:c"),
        acl("orders"),
        acl("orders", "User:b"),
    ), "a rule about many names that was taken away comes back for this topic alone"


def test_a_rule_that_was_taken_away_while_its_topic_was_there_stays_away() -> None:
    told = tell(cluster(topic("A"), acls=(acl("orders"),)), cluster(topic("A"), acls=()), cluster(acls=()))
    assert know(told).cluster.acls == ()


def test_acls_quotas_and_users_that_could_not_be_read_are_those_of_the_last_run_that_could() -> None:
    user = ScramUser(name="u", mechanism="SCRAM-SHA-256", iterations=4096)
    first = cluster(acls=(acl("x"),), quotas=(quota("a"),), users=(user,))
    blind = cluster(acls=None, quotas=None, users=None)
    told = know(tell(first, blind, blind))
    assert told.access_runs == dict.fromkeys(("acls", "quotas", "users"), "run-0")
    known = told.cluster
    assert (known.acls, known.quotas, known.users) == ((acl("x"),), (quota("a"),), (user,))
    lifted = know(tell(first, cluster())).cluster
    assert (lifted.acls, lifted.quotas, lifted.users) == ((), (), ())


def test_another_cluster_in_the_same_archive_takes_nothing_from_the_first() -> None:
    first = cluster(topic("A"), quotas=(quota("a"), quota("b")), groups=(group("g", offset("A", 5)),))
    second = cluster(topic("B"), cluster_id="two", quotas=(quota("b", 2.0),))
    known = know(tell(first, second))
    assert {each.topic_id for each in known.cluster.topics} == {"A", "B"}
    assert known.cluster.quotas == (quota("a"), quota("b", 2.0))
    again = tell(first, second, first)
    assert [each.topic.topic_id for each in again.carried.topics] == ["B"]
    assert know(again).cluster.quotas == (quota("a"), quota("b")), "its own values come before those of others"


def test_older_runs_are_added_behind_what_newer_ones_know() -> None:
    """As it is done for archives whose snapshots carry nothing on."""
    oldest = RunKnowledge(run_id="run-0", cluster=cluster(topic("C"), topic("A"), groups=(group("g", offset("A", 1)),)))
    older = RunKnowledge(run_id="run-1", cluster=cluster(topic("A"), groups=(group("g", offset("A", 2)),)))
    carried = carry(oldest, cluster(), HELD, carry(older, cluster(), HELD))
    assert [(each.topic.topic_id, each.run_id) for each in carried.topics] == [("C", "run-0"), ("A", "run-1")]
    assert [(each.committed.offset, each.run_id) for each in carried.offsets] == [(2, "run-1")]


def test_what_is_carried_is_the_same_through_json() -> None:
    told = tell(
        cluster(
            topic("A"),
            groups=(group("g", offset("A", 5)), group("h", offset("A", 2), offset("A", 4, 7))),
            acls=(acl("orders"),),
            quotas=(quota("a"),),
        ),
        cluster(cluster_id="two", users=None),
    )
    assert decode_carried(through_json(told.carried)) == told.carried
    assert told.carried.access


def test_what_is_carried_is_refused_where_it_is_nonsense() -> None:
    whole = through_json(tell(cluster(topic("A"), groups=(group("g", offset("A", 5)),)), cluster()).carried)
    for broken in (
        {},
        {**whole, "topics": [{}]},
        {**whole, "topics": None},
        {**whole, "groups": [{**whole["groups"][0], "offsets": [[1]]}]},
        {**whole, "access": [{"run_id": "r", "cluster_id": None, "what": "secrets", "values": []}]},
    ):
        with pytest.raises(CorruptDataError, match="carries on"):
            decode_carried(broken)


def test_carrying_on_costs_what_is_lost_and_not_how_many_runs_there_were() -> None:
    told = tell(cluster(topic("A"), groups=(group("g", offset("A", 5)),)), *(cluster(topic("B")) for _ in range(50)))
    assert (len(told.carried.topics), len(told.carried.offsets)) == (1, 1)
    assert replace(told.carried, topics=(), offsets=(), access=()) == NOTHING

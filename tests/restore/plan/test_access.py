"""A restore never allows anybody more than the archived cluster did."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.kafka.state.cluster_state import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    METRICS_SETTINGS,
    Acl,
    ClusterState,
    DelegationToken,
    EntitySettings,
    Quota,
    QuotaEntity,
    ScramUser,
)
from maxbrod.restore.plan.access import AclPlan, SettingsPlan, plan_acls, plan_quotas, plan_settings
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.plan.targets import Right
from maxbrod.restore.state import decode_plan, encode_plan
from support.catalog_rows import segment
from support.restore_plans import ALL_RIGHTS, cluster, plan, target, topic

if TYPE_CHECKING:
    from maxbrod.restore.plan.plan import RestorePlan

TOPICS = {"orders": "orders-back", "order-lines": "lines"}


def acl(name: str, pattern: str = "LITERAL", kind: str = "TOPIC", **changes: Any) -> Acl:
    values = {"principal": "User:alice", "host": "*", "operation": "READ", "permission": "ALLOW", **changes}
    return Acl(resource_type=kind, resource_name=name, pattern_type=pattern, **values)


def planned(*archived: Acl, whole: bool = False, present: tuple[Acl, ...] = ()) -> AclPlan:
    return plan_acls(archived, present, topics=TOPICS, groups=["billing"], whole=whole)


def test_rules_follow_their_topic_to_its_new_name() -> None:
    assert planned(acl("orders")).create == (acl("orders-back"),)
    assert planned(acl("order", "PREFIXED")).create == (acl("lines"), acl("orders-back"))
    assert planned(acl("*", permission="DENY")).create == (
        acl("lines", permission="DENY"),
        acl("orders-back", permission="DENY"),
    )
    assert planned(acl("billing", kind="GROUP")).create == (acl("billing", kind="GROUP"),)


def test_rules_about_anything_else_are_left_out_and_told() -> None:
    others = (acl("users"), acl("kafka-cluster", kind="CLUSTER"), acl("audit", kind="GROUP"), acl("orders", "7"))
    assert planned(*others) == AclPlan(create=(), left_out=tuple(sorted(others)))


def test_a_rule_that_is_made_narrower_is_told_and_one_about_a_single_topic_is_not() -> None:
    wide = (acl("order", "PREFIXED"), acl("*"))
    assert planned(*wide, acl("orders")).narrowed == tuple(sorted(wide))
    assert planned(*wide, whole=True).narrowed == ()


def test_rules_that_the_target_has_are_not_created_again() -> None:
    found = planned(acl("orders"), acl("orders", operation="WRITE"), present=(acl("orders-back"), acl("elsewhere")))
    assert (found.present, found.create) == ((acl("orders-back"),), (acl("orders-back", operation="WRITE"),))


def test_a_whole_archive_brings_every_rule_back_once() -> None:
    rules = (acl("*"), acl("x", "PREFIXED"), acl("kafka-cluster", kind="CLUSTER"))
    assert planned(*rules, *rules, whole=True).create == tuple(sorted(rules))
    assert planned(*rules, whole=True, present=rules[:2]).create == rules[2:]


names = st.text("ab*", max_size=3)


@given(st.lists(st.builds(acl, names, st.sampled_from(["LITERAL", "PREFIXED"]), st.sampled_from(["TOPIC", "GROUP"]))))
def test_a_restored_rule_is_never_about_more_than_what_was_restored(rules: list[Acl]) -> None:
    found = plan_acls(rules, (), topics={"a": "a", "ab": "ab"}, groups=["b"], whole=False).create
    for rule in found:
        assert rule.pattern_type == "LITERAL"
        assert rule.resource_name in ({"a", "ab"} if rule.resource_type == "TOPIC" else {"b"})
        sources = [each for each in rules if each.resource_type == rule.resource_type]
        assert any(
            each.resource_name in {rule.resource_name, "*"}
            if each.pattern_type == "LITERAL"
            else rule.resource_name.startswith(each.resource_name)
            for each in sources
        )


def test_a_quota_of_the_target_is_never_overwritten() -> None:
    def quota(user: str | None, rate: float) -> Quota:
        return Quota(entities=(QuotaEntity(type="user", name=user),), values={"producer_byte_rate": rate})

    found = plan_quotas([quota("a", 1), quota("b", 1), quota(None, 1)], [quota("a", 1), quota("b", 2)])
    assert found.set == (quota(None, 1),)
    assert found.kept == (quota("b", 2),)
    assert found.present == (quota("a", 1),)


def restored(
    request: RestoreRequest, *, archived: ClusterState | None, into: ClusterState | None = None, **state: Any
) -> RestorePlan:
    return plan([segment(0, 10)], request, snapshot=archived, into=replace(target(**state), cluster=into or cluster()))


def access_obstacles(made: RestorePlan) -> list[tuple[bool, str]]:
    return [(each.fatal, each.what) for each in made.obstacles if each.kind == "access"]


def test_access_that_the_archive_does_not_know_is_never_passed_over() -> None:
    unknown = replace(cluster(topic()), acls=None, quotas=None)
    for archived in (unknown, None):
        found = access_obstacles(restored(RestoreRequest(with_acls=True, with_quotas=True), archived=archived))
        assert [fatal for fatal, _ in found] == [True, True]
        assert access_obstacles(restored(RestoreRequest(), archived=archived)) == []


def test_tokens_do_not_come_back_and_their_owners_are_named_for_another_cluster_alone() -> None:
    token = DelegationToken(
        token_id="t", owner="User:alice", requester="User:bob", renewers=(), issued_at_ms=1, expires_at_ms=2
    )
    archived = replace(cluster(topic()), tokens=(token,), cluster_id="lost")
    made = restored(
        RestoreRequest(with_acls=True), archived=archived, into=replace(cluster(), cluster_id="new", users=())
    )
    assert made.access.tokens == ("User:alice",)
    ((fatal, what),) = access_obstacles(made)
    assert (fatal, "User:alice" in what) == (False, True)
    same = restored(RestoreRequest(with_acls=True), archived=archived, into=replace(cluster(), cluster_id="lost"))
    assert same.access.tokens == ()


def test_secrets_of_users_do_not_come_back_and_that_is_said_of_those_that_are_missing() -> None:
    users = tuple(ScramUser(name=name, mechanism="SCRAM-SHA-256", iterations=4096) for name in ("alice", "bob"))
    archived, into = replace(cluster(topic()), users=users), replace(cluster(), users=users[:1])
    made = restored(RestoreRequest(with_acls=True), archived=archived, into=into)
    assert made.access.users == ("bob",)
    ((fatal, what),) = access_obstacles(made)
    assert not fatal
    assert "bob" in what
    assert "alice" not in what
    assert access_obstacles(restored(RestoreRequest(with_acls=True, strict=True), archived=archived, into=into))[0][0]


def test_a_rule_of_an_unknown_kind_is_refused_because_it_may_forbid_something() -> None:
    archived = replace(cluster(topic()), acls=(acl("orders", operation="99"),))
    assert [fatal for fatal, _ in access_obstacles(restored(RestoreRequest(with_acls=True), archived=archived))] == [
        True
    ]


def test_rights_for_access_are_needed_only_where_something_is_to_be_done() -> None:
    archived = replace(cluster(topic()), acls=(acl("orders"),), quotas=(Quota(entities=(), values={"a": 1.0}),))
    denied = {**ALL_RIGHTS, Right.ALTER_CLUSTER: False, Right.ALTER_CLUSTER_CONFIGS: False}
    request = RestoreRequest(with_acls=True, with_quotas=True)
    told = [each.what for each in restored(request, archived=archived, rights=denied).obstacles if each.fatal]
    assert told == ["this user may not Alter the cluster", "this user may not AlterConfigs on the cluster"]
    there = replace(archived, topics=())
    assert not [
        each for each in restored(request, archived=archived, into=there, rights=denied).obstacles if each.fatal
    ]


def test_access_in_a_plan_comes_back_as_it_was() -> None:
    quotas = (Quota(entities=(QuotaEntity(type="user", name=None),), values={"producer_byte_rate": 1.5}),)
    users = (ScramUser(name="bob", mechanism="SCRAM-SHA-256", iterations=1),)
    archived = replace(cluster(topic()), acls=(acl("ord", "PREFIXED"), acl("x")), quotas=quotas, users=users)
    made = restored(RestoreRequest(with_acls=True, with_quotas=True, topics=("orders",)), archived=archived)
    assert made.access.acls is not None
    assert decode_plan(encode_plan(made)) == made


def group_settings(values: dict[str, str | None], kind: str = GROUP_SETTINGS, name: str = "billing") -> EntitySettings:
    return EntitySettings(kind=kind, name=name, values=values)


def settings_plan(
    *archived: EntitySettings, present: tuple[EntitySettings, ...] = (), **request: Any
) -> SettingsPlan | None:
    wanted = RestoreRequest(**request)
    before, now = replace(cluster(topic()), settings=archived), replace(cluster(), settings=present)
    return plan_settings(wanted, before, now, ["billing"])


def test_settings_of_restored_groups_are_part_of_every_plan_and_others_only_if_asked() -> None:
    mine, other = group_settings({"a": "1"}), group_settings({"a": "1"}, name="audit")
    metrics = group_settings({"interval.ms": "5"}, METRICS_SETTINGS, "m")
    assert settings_plan(mine, other, metrics) == SettingsPlan(set=(mine,))
    assert settings_plan(mine, other, metrics, with_settings=True) == SettingsPlan(set=(metrics, mine))
    assert settings_plan(other, metrics) is None


def test_settings_that_the_target_has_stay_and_what_cannot_come_back_is_named() -> None:
    archived = group_settings({"same": "1", "other": "1", "secret": None, "new": "1"})
    present = group_settings({"same": "1", "other": "2"})
    found = settings_plan(archived, present=(present,))
    assert found == SettingsPlan(
        set=(group_settings({"new": "1"}),),
        kept=(group_settings({"other": "1"}),),
        hidden=(group_settings({"secret": None}),),
    )
    one = group_settings({"listeners": "x"}, BROKER_SETTINGS, "3")
    assert settings_plan(one, with_settings=True) == SettingsPlan(set=(), hidden=(one,))


def test_a_lower_level_of_a_feature_is_told_and_an_unknown_one_is_not() -> None:
    archived = replace(cluster(topic()), features={"share.version": 1, "metadata.version": 30})
    into = replace(cluster(), features={"metadata.version": 29})
    told = access_obstacles(restored(RestoreRequest(), archived=archived, into=into))
    assert [what for _, what in told] == [
        "the feature metadata.version has level 29 at the target, and had 30",
        "the feature share.version has level 0 at the target, and had 1",
    ]
    assert access_obstacles(restored(RestoreRequest(), archived=archived, into=replace(into, features=None))) == []
    assert access_obstacles(restored(RestoreRequest(), archived=into, into=archived)) == []

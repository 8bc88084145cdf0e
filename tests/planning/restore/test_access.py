"""A restore never allows anybody more than the archived cluster did."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.kafka.cluster_state import Acl, Quota, QuotaEntity
from maxbrod.planning.restore.access import AclPlan, plan_acls, plan_quotas

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

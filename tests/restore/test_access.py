"""ACLs and quotas come back with their topics: under the new names, once, and never more than there was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from maxbrod.errors import UnavailableError
from maxbrod.kafka.admin import create_acls, set_quotas
from maxbrod.kafka.state.access import read_acls, read_quotas
from maxbrod.kafka.state.cluster_state import Acl, Quota, QuotaEntity
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.restores import Command
from support.sparkless import run_here, without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.restore.items import Restored
    from maxbrod.sandbox.cluster import Cluster


def acl(name: str, operation: str = "READ", *, pattern: str = "LITERAL", permission: str = "ALLOW") -> Acl:
    return Acl(
        resource_type="TOPIC",
        resource_name=name,
        pattern_type=pattern,
        principal="User:bob",
        host="*",
        operation=operation,
        permission=permission,
    )


def quota(user: str, rate: float) -> Quota:
    return Quota(entities=(QuotaEntity(type="user", name=user),), values={"producer_byte_rate": rate})


@pytest.fixture
def client(fenced: Cluster) -> Iterator[KafkaClient]:
    config = config_of(fenced, "/nowhere").kafka
    assert config is not None
    with KafkaClient(config) as opened:
        yield opened


def acls_of(client: KafkaClient, name: str) -> set[Acl]:
    return {each for each in read_acls(client, deadline=Deadline.after(30))[1] if each.resource_name == name}


def rates(client: KafkaClient) -> dict[str | None, float | None]:
    found = read_quotas(client, deadline=Deadline.after(30))
    return {each.entities[0].name: each.values.get("producer_byte_rate") for each in found if len(each.entities) == 1}


@pytest.fixture
def command(
    fenced: Cluster, client: KafkaClient, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """The archive has a topic, three rules about it, and two quotas."""
    create_topic(fenced, topic)
    produce(fenced, topic, numbered(30))
    rules = (acl(topic), acl(topic, "WRITE", permission="DENY"), acl(topic[:-1], "DESCRIBE", pattern="PREFIXED"))
    quotas = (quota(topic, 1e6), quota(f"{topic}-other", 2e6))
    assert all(each.done for each in create_acls(client, rules).values())
    assert all(each.done for each in set_quotas(client, quotas).values())
    wait_for("the rules", lambda: len(acls_of(client, topic)) == 2, timeout_s=60)
    wait_for("the quotas", lambda: {topic, f"{topic}-other"} <= rates(client).keys(), timeout_s=60)
    assert back_up(config_of(fenced, tmp_path / "archive", topic)).complete
    with without_spark():
        yield Command(fenced, tmp_path / "archive", capsys)


def test_rules_follow_their_topic_and_are_planned_stored_and_told(
    client: KafkaClient, topic: str, command: Command
) -> None:
    planned = command.json("restore", "--suffix", "-new", "--with-acls", "--dry-run")
    assert acls_of(client, f"{topic}-new") == set(), "a dry run creates nothing"
    told = command("restore", "--suffix", "-new", "--with-acls", "--dry-run")
    assert "3 to create, 0 already there" in told
    assert f"deny User:bob write on topic {topic}-new from *" in told
    assert "about many names" in told, "the prefixed rule is made narrower, and that is said"

    report = command.json("restore", "--suffix", "-new", "--with-acls")
    assert report["access"]["acls"] == planned["access"]["acls"]
    wanted = {
        acl(f"{topic}-new"),
        acl(f"{topic}-new", "WRITE", permission="DENY"),
        acl(f"{topic}-new", "DESCRIBE"),
    }
    wait_for("the rules", lambda: acls_of(client, f"{topic}-new") == wanted, timeout_s=60)


def test_without_being_asked_a_restore_never_touches_access(client: KafkaClient, topic: str, command: Command) -> None:
    report = command.json("restore", "--suffix", "-plain")
    assert report["access"] == {"acls": None, "quotas": None, "settings": None, "users": [], "tokens": []}
    assert acls_of(client, f"{topic}-plain") == set()


def test_a_quota_comes_back_and_one_that_the_target_has_is_never_overwritten(
    client: KafkaClient, topic: str, command: Command
) -> None:
    set_quotas(client, [quota(topic, 7e6)])
    remove_quota(client, f"{topic}-other")
    wait_for("the quotas", lambda: rates(client).get(topic) == 7e6, timeout_s=60)
    report = command.json("restore", "--suffix", "-new", "--with-quotas")
    access = report["access"]["quotas"]
    assert [each["entities"][0]["name"] for each in access["set"]] == [f"{topic}-other"]
    assert topic in [each["entities"][0]["name"] for each in access["kept"]]
    assert any("another quota" in each for each in report["warnings"])
    wait_for("the quota", lambda: rates(client).get(f"{topic}-other") == 2e6, timeout_s=60)
    assert rates(client)[topic] == 7e6


def test_a_quota_that_somebody_sets_meanwhile_is_never_overwritten(
    client: KafkaClient, topic: str, command: Command
) -> None:
    remove_quota(client, f"{topic}-other")

    def job(*arguments: Any, **more: Any) -> list[Restored]:
        set_quotas(client, [quota(f"{topic}-other", 9e6)])
        wait_for("the quota", lambda: rates(client).get(f"{topic}-other") == 9e6, timeout_s=60)
        return run_here(*arguments, **more)

    with without_spark(job):
        assert command.json("restore", "--suffix", "-new", "--with-quotas")["complete"]
    assert rates(client)[f"{topic}-other"] == 9e6


def remove_quota(client: KafkaClient, user: str) -> None:
    from kafka.protocol.admin import AlterClientQuotasRequest  # noqa: PLC0415 - this one test takes a quota away

    entry = AlterClientQuotasRequest.EntryData
    change = entry(
        entity=[entry.EntityData(entity_type="user", entity_name=user)],
        ops=[entry.OpData(key="producer_byte_rate", value=0.0, remove=True)],
    )
    client.ask_any(lambda: AlterClientQuotasRequest(entries=[change], validate_only=False))
    wait_for("the quota to go", lambda: user not in rates(client), timeout_s=60)


def test_no_record_stands_in_a_topic_before_its_rules_do(client: KafkaClient, topic: str, command: Command) -> None:
    """And a resumed restore does it again, without harm."""
    request = ("restore", "--suffix", "-new", "--with-acls", "--with-quotas")
    with without_spark(Mock(side_effect=UnavailableError("the lights went out"))):
        command(*request, exits=1)
    wait_for("the rules", lambda: len(acls_of(client, f"{topic}-new")) == 3, timeout_s=60)
    report = command.json(*request)
    assert (report["resumed"], report["complete"]) == (True, True)
    assert len(report["access"]["acls"]["create"]) == 3
    assert len(acls_of(client, f"{topic}-new")) == 3


def test_a_cluster_without_an_authorizer_is_told_before_anything_is_done(
    cluster: Cluster, fenced: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    del fenced, command
    elsewhere = Command(cluster, tmp_path / "archive", capsys)
    assert "no authorizer" in elsewhere("restore", "--with-acls", "--dry-run", exits=5)
    elsewhere("restore", "--with-acls", exits=5)
    with cluster.admin() as admin:
        assert topic not in admin.list_topics()

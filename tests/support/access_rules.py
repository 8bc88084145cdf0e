"""Rules of access, and how a cluster gets them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePatternFilter,
    ResourceType,
)

from maxbrod.kafka.admin import create_acls
from maxbrod.kafka.state.access import read_acls
from maxbrod.kafka.state.cluster_state import Acl
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.sandbox.process import wait_for
from support.backups import config_of

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster


def client_of(cluster: Cluster) -> KafkaClient:
    config = config_of(cluster, "/nowhere").kafka
    assert config is not None
    return KafkaClient(config)


def rule(user: str, kind: str, name: str, operation: str, pattern: str = "LITERAL") -> Acl:
    return Acl(
        resource_type=kind,
        resource_name=name,
        pattern_type=pattern,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission="ALLOW",
    )


def allow(cluster: Cluster, *rules: Acl) -> None:
    with client_of(cluster) as client:
        assert all(each.done for each in create_acls(client, rules).values())
        wait_for(
            "the rules", lambda: set(rules) <= set(read_acls(client, deadline=Deadline.after(30))[1]), timeout_s=60
        )


def forbid_all(cluster: Cluster) -> None:
    """Delete every rule."""
    anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    everyone = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, anything)
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
        admin.delete_acls([everyone])
    with client_of(cluster) as client:
        wait_for("no rule", lambda: not read_acls(client, deadline=Deadline.after(30))[1], timeout_s=60)

"""The state of a cluster as resources of other tools: Strimzi's operator and Terraform. Pure, and without secrets.

What a tool cannot express is named in `left_out`, never dropped quietly.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from maxbrod.kafka.state.cluster_state import Acl, ClusterState, Quota, ScramUser, TopicState
from maxbrod.restore.plan.access import describe_acl, describe_quota

_NAME_MAX: Final = 63
_STRIMZI: Final = "kafka.strimzi.io/v1"
_STRIMZI_TYPES: Final = {
    "TOPIC": "topic",
    "GROUP": "group",
    "CLUSTER": "cluster",
    "TRANSACTIONAL_ID": "transactionalId",
}
_STRIMZI_PATTERNS: Final = {"LITERAL": "literal", "PREFIXED": "prefix"}
_STRIMZI_QUOTAS: Final = {
    "producer_byte_rate": "producerByteRate",
    "consumer_byte_rate": "consumerByteRate",
    "request_percentage": "requestPercentage",
    "controller_mutation_rate": "controllerMutationRate",
}
_STRIMZI_MECHANISM: Final = "SCRAM-SHA-512"
_USER: Final = "User:"
_TLS_USER: Final = "CN="


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    documents: tuple[dict[str, Any], ...]
    left_out: tuple[str, ...]
    """What the tool cannot express, in words."""


def strimzi_resources(state: ClusterState, cluster_name: str) -> Resources:
    """Return a KafkaTopic for each topic and a KafkaUser for each user that has credentials, rules or quotas."""
    topics = [
        _strimzi("KafkaTopic", topic.name, cluster_name, _strimzi_topic(topic))
        for topic in state.topics
        if not topic.internal
    ]
    left_out: list[str] = []
    rules, quotas = _rules_by_user(state.acls or (), left_out), _quotas_by_user(state.quotas or (), left_out)
    users = {user.name: user for user in state.users or () if user.mechanism == _STRIMZI_MECHANISM}
    left_out += [
        f"SCRAM user {user.name}: Strimzi has no {user.mechanism}"
        for user in state.users or ()
        if user.name not in users
    ]
    resources = [
        _strimzi("KafkaUser", name.removeprefix(_TLS_USER), cluster_name, _strimzi_user(name, users, rules, quotas))
        for name in sorted({*rules, *quotas, *users})
    ]
    return Resources(documents=(*topics, *resources), left_out=tuple(left_out))


def _strimzi(kind: str, name: str, cluster_name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": resource_name(name), "labels": {"strimzi.io/cluster": cluster_name}}
    return {"apiVersion": _STRIMZI, "kind": kind, "metadata": metadata, "spec": spec}


def _strimzi_topic(topic: TopicState) -> dict[str, Any]:
    spec = {"topicName": topic.name, "partitions": topic.partition_count, "replicas": topic.replication_factor}
    config = _revealed(topic.configs)
    return {**spec, "config": config} if config else spec


def _strimzi_user(
    name: str,
    users: Mapping[str, ScramUser],
    rules: Mapping[str, list[dict[str, Any]]],
    quotas: Mapping[str, dict[str, float]],
) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if name in users:
        spec["authentication"] = {"type": "scram-sha-512"}
    elif name.startswith(_TLS_USER):
        spec["authentication"] = {"type": "tls"}
    if name in rules:
        spec["authorization"] = {"type": "simple", "acls": rules[name]}
    if name in quotas:
        spec["quotas"] = quotas[name]
    return spec


def _rules_by_user(acls: Iterable[Acl], left_out: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rules of each user, those that differ only in their operation as one."""
    found: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {}
    for acl in acls:
        kind, pattern = _STRIMZI_TYPES.get(acl.resource_type), _STRIMZI_PATTERNS.get(acl.pattern_type)
        if kind is None or pattern is None or acl.operation.isdigit() or not _is_user(acl.principal):
            left_out.append(f"ACL: {describe_acl(acl)}")
            continue
        key = kind, acl.resource_name, pattern, acl.host, acl.permission
        named = {} if kind == "cluster" else {"name": acl.resource_name, "patternType": pattern}
        rule = {"resource": {"type": kind, **named}, "operations": [], "host": acl.host, "type": acl.permission.lower()}
        user = acl.principal.removeprefix(_USER)
        found.setdefault(user, {}).setdefault(key, rule)["operations"].append(_camel(acl.operation))
    return {user: list(rules.values()) for user, rules in found.items()}


def _is_user(principal: str) -> bool:
    name = principal.removeprefix(_USER)
    # A certificate with more than a common name is none that Strimzi issues, and `*` is everybody.
    return principal.startswith(_USER) and name != "*" and "," not in name


def _quotas_by_user(quotas: Iterable[Quota], left_out: list[str]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for quota in quotas:
        names = [entity.name for entity in quota.entities if entity.type == "user" and entity.name is not None]
        if len(names) == len(quota.entities) == 1 and quota.values.keys() <= _STRIMZI_QUOTAS.keys():
            found[names[0]] = {_STRIMZI_QUOTAS[key]: _number(value) for key, value in quota.values.items()}
        else:
            left_out.append(f"quota: {describe_quota(quota)}")
    return found


def terraform_resources(state: ClusterState) -> Resources:
    """Return one document in Terraform's JSON syntax, for the provider Mongey/kafka."""
    topics = {
        _label(topic.name): {
            "name": _literal(topic.name),
            "partitions": topic.partition_count,
            "replication_factor": topic.replication_factor,
            "config": {key: _literal(value) for key, value in _revealed(topic.configs).items()},
        }
        for topic in state.topics
        if not topic.internal
    }
    left_out = [f"SCRAM user {user.name}: Terraform would need the password" for user in state.users or ()]
    acls: dict[str, Any] = {}
    for acl in state.acls or ():
        words = acl.resource_type, acl.pattern_type, acl.operation, acl.permission
        if any(word.isdigit() for word in words):
            left_out.append(f"ACL: {describe_acl(acl)}")
            continue
        label = _label("-".join((acl.principal, acl.resource_name, *words, acl.host)))
        acls[label] = {
            "resource_name": _literal(acl.resource_name),
            "resource_type": _terraform_type(acl.resource_type),
            "resource_pattern_type_filter": acl.pattern_type.capitalize(),
            "acl_principal": _literal(acl.principal),
            "acl_host": _literal(acl.host),
            "acl_operation": _camel(acl.operation),
            "acl_permission_type": acl.permission.capitalize(),
        }
    quotas: dict[str, Any] = {}
    for quota in state.quotas or ():
        if len(quota.entities) != 1 or quota.entities[0].name is None:
            left_out.append(f"quota: {describe_quota(quota)}")
            continue
        (entity,) = quota.entities
        quotas[_label(f"{entity.type}-{entity.name}")] = {
            "entity_type": entity.type,
            "entity_name": _literal(entity.name or ""),
            "config": {key: _number(value) for key, value in quota.values.items()},
        }
    found = {"kafka_topic": topics, "kafka_acl": acls, "kafka_quota": quotas}
    resources = {kind: entries for kind, entries in found.items() if entries}
    document = {"terraform": {"required_providers": {"kafka": {"source": "Mongey/kafka"}}}, "resource": resources}
    return Resources(documents=(document,), left_out=tuple(left_out))


def resource_name(name: str) -> str:
    """Return the name that Kubernetes allows: the same, or one with a digest of it, so that no two are the same."""
    if re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name) and len(name) <= _NAME_MAX and ".." not in name:
        return name
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[: _NAME_MAX - 9].strip("-")
    return f"{plain or 'x'}-{_digest(name)}"


def _label(name: str) -> str:
    """Return a name of Terraform's own: letters, digits and dashes, not beginning with a digit."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return name if plain == name and not name[0].isdigit() else f"r_{plain}_{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _literal(text: str) -> str:
    """Return a text that Terraform takes as it is: its JSON has templates in texts."""
    return text.replace("${", "$${").replace("%{", "%%{")


def _terraform_type(kind: str) -> str:
    return {"TRANSACTIONAL_ID": "TransactionalID", "DELEGATION_TOKEN": "DelegationToken"}.get(kind, kind.capitalize())


def _camel(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))


def _number(value: float) -> float:
    return int(value) if value == int(value) else value


def _revealed(configs: Mapping[str, str | None] | None) -> dict[str, str]:
    return {key: value for key, value in sorted((configs or {}).items()) if value is not None}

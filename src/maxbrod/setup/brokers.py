"""What `maxbrod doctor` tries at a cluster: every broker by the name that it advertises, and the rights of the user."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from maxbrod.archive.selection import nearest, select_topics
from maxbrod.config import KafkaConfig
from maxbrod.errors import EXIT_REFUSED, MaxbrodError
from maxbrod.kafka.state.access import cluster_operations, group_operations, topic_operations
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.notices import Promise
from maxbrod.setup.findings import doubtful, failed, well
from maxbrod.text import counted

_NAMED_MAX: Final = 5
_GROUP: Final = "maxbrod-doctor"
"""Brokers tell the rights on a group that does not exist, too. ACLs of single groups are not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rights:
    """The operations that a verb needs, in Kafka's names. Those with a text are optional: what happens without them."""

    topics: Mapping[str, str | None]
    groups: Mapping[str, str]
    cluster: Mapping[str, str]


_NEEDED: Final = {
    "backup": _Rights(
        topics={"READ": None, "DESCRIBE_CONFIGS": "configurations are not captured, and holes are unexplained"},
        groups={"DESCRIBE": "groups and their committed offsets are not captured"},
        cluster={
            "DESCRIBE": "whether topics are hidden from this user is unknown, and ACLs and users are not captured",
            "DESCRIBE_CONFIGS": "client quotas are not captured",
        },
    ),
    "restore": _Rights(
        topics={
            "READ": None,
            "WRITE": None,
            "ALTER_CONFIGS": None,
            "DELETE": "a log that did not start at offset 0 cannot get its exact offsets",
        },
        groups={"READ": "--groups cannot restore the positions of groups"},
        cluster={
            "CREATE": "the topics must exist before a restore",
            "CLUSTER_ACTION": "holes are filled slowly, by empty transactions",
            "ALTER": "--with-acls is refused",
            "ALTER_CONFIGS": "--with-quotas is refused",
        },
    ),
}


def try_cluster(
    config: KafkaConfig, verbs: Sequence[str], patterns: Sequence[str], patience_s: float
) -> Iterator[Promise]:
    with closing(KafkaClient(config)) as client:
        found = client.metadata(deadline=Deadline.after(patience_s))
        for node in sorted(found.brokers):
            # By the name that it advertises: that is how leaders are reached, whatever the bootstrap is called.
            broker = found.brokers[node]
            try:
                client.connection(node, deadline=Deadline.after(patience_s))
            except MaxbrodError as error:
                hint = error.hint or "check advertised.listeners of the broker, DNS and the firewall"
                yield failed("broker", f"{node} at {broker.host}:{broker.port}: {error}", hint, error.exit_code)
        security = config.security_protocol + ("" if config.sasl is None else f", {config.sasl.mechanism}")
        own = [name for name, topic in found.topics.items() if not topic.internal]
        brokers, topics = counted(len(found.brokers), "broker"), counted(len(own), "topic")
        yield well("cluster", f"{brokers}, {topics} visible to this user ({security}; cluster id {found.cluster_id})")
        internal = {name: topic.internal for name, topic in found.topics.items()}
        selection = select_topics(internal, patterns)
        for word in (*selection.missing, *selection.unmatched):
            yield doubtful("topics", f"the cluster has no topic {word!r}", nearest(word, own, see=_hidden(word)))
        for verb in verbs:
            if verb in _NEEDED:
                # A topic that is gone is what a restore is for.
                names = {*selection.chosen, *(selection.missing if verb == "restore" else ())}
                yield from _rights(client, verb, names, patience_s)


def _hidden(word: str) -> str:
    return f"create it; or, if it exists, let this user Describe it: {_acl('DESCRIBE', f'--topic {word}')}"


def _rights(client: KafkaClient, verb: str, topics: Collection[str], patience_s: float) -> Iterator[Promise]:
    name, needed = f"rights for {verb}", _NEEDED[verb]
    on_topics = topic_operations(client, topics, deadline=Deadline.after(patience_s))
    findings: list[Promise] = []
    for operation, without in needed.topics.items():
        where = sorted(topic for topic, allowed in on_topics.items() if operation not in allowed)
        if where:
            text = f"{_words(operation)} is missing on {_listed(where)}"
            hint = _acl(operation, f"--topic {where[0] if len(where) == 1 else 'NAME'}")
            findings.append(
                failed(name, text, hint, EXIT_REFUSED)
                if without is None
                else doubtful(name, f"{text}: {without}", hint)
            )
    on_cluster = cluster_operations(client, deadline=Deadline.after(patience_s)) or frozenset()
    for operation, without in needed.cluster.items():
        if operation not in on_cluster:
            text = f"{_words(operation)} on the cluster is missing: {without}"
            findings.append(doubtful(name, text, _acl(operation, "--cluster")))
    findings += _group_rights(client, name, needed.groups, patience_s)
    if len(on_topics) < len(topics) or not topics:
        unknown = counted(len(topics) - len(on_topics), "topic") if topics else "any topic: none was found"
        findings.append(
            doubtful(name, f"not known on {unknown}", "name a topic that exists with --topic, or create one")
        )
    if not findings:
        findings.append(well(name, f"granted on the cluster, on groups, and on {counted(len(on_topics), 'topic')}"))
    yield from findings


def _group_rights(client: KafkaClient, name: str, needed: Mapping[str, str], patience_s: float) -> Iterator[Promise]:
    try:
        allowed = group_operations(client, [_GROUP], deadline=Deadline.after(patience_s)).get(_GROUP)
    except MaxbrodError as error:
        yield doubtful(name, f"not known on groups: {error}", error.hint)
        return
    for operation, without in needed.items():
        if allowed is None or operation not in allowed:
            text = f"{_words(operation)} on all groups is missing: {without}"
            yield doubtful(name, text, _acl(operation, "--group '*'"))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if names[_NAMED_MAX:] else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def _words(operation: str) -> str:
    return "".join(part.capitalize() for part in operation.split("_"))


def _acl(operation: str, resource: str) -> str:
    return f"kafka-acls.sh … --add --allow-principal User:NAME --operation {_words(operation)} {resource}"

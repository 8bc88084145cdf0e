"""What an archive knows of a cluster as of a run: the newest state of each thing, and the run that saw it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.acls import is_about
from maxbrod.archive.carried import ACCESS, NOTHING, Carried, LostOffset, LostTopic, Place, RunKnowledge, decode_carried
from maxbrod.errors import naming
from maxbrod.kafka.state.cluster_state import Acl, ClusterState, Group, TopicState, decode_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maxbrod.archive.snapshot_document import Snapshot

GONE: Final = "Dead"
"""Kafka's own word for the state of a group that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a run saw merged with what it carries on.

    `cluster` may have several topics of one name: the one that existed at the run comes first. The other fields name
    runs only for what the run itself did not see.
    """

    cluster: ClusterState
    ranks: Mapping[str, int]
    """A rank for each known topic id: the higher, the later the cluster had the topic."""
    topic_runs: Mapping[str, str] = field(default_factory=dict)
    """The run that last saw a topic which the cluster had lost, by topic id."""
    config_runs: Mapping[str, str] = field(default_factory=dict)
    """The run that last read the configuration of a topic which existed but could not be described."""
    offset_runs: Mapping[Place, str] = field(default_factory=dict)
    """The run that last knew a group's position."""
    access_runs: Mapping[str, str] = field(default_factory=dict)
    """The run that last read the ACLs, quotas or users of this cluster, where the run itself could not."""


def knowledge_of(snapshot: Snapshot) -> RunKnowledge:
    """What a snapshot holds of its cluster. CorruptDataError, UnsupportedFormatError: it cannot be read."""
    with naming(f"snapshots/{snapshot.run_id}.json.zst"):
        return RunKnowledge(
            run_id=snapshot.run_id,
            cluster=decode_state(snapshot.cluster),
            carried=NOTHING if snapshot.carried is None else decode_carried(snapshot.carried),
        )


def know(knowledge: RunKnowledge) -> Known:
    cluster, carried = knowledge.cluster, knowledge.carried
    there = {topic.topic_id for topic in cluster.topics}
    lost = [topic for topic in carried.topics if topic.topic.topic_id not in there]
    described = {topic.topic.topic_id: topic for topic in carried.topics if topic.topic.topic_id in there}
    ids = {each.topic.name: each.topic.topic_id for each in lost}
    return Known(
        cluster=replace(
            cluster,
            topics=(
                *(_described(topic, described.get(topic.topic_id)) for topic in cluster.topics),
                *(each.topic for each in reversed(lost)),
            ),
            groups=tuple(_groups(cluster, carried.offsets, ids)),
            **_access(cluster, carried, lost),
        ),
        ranks={
            **{each.topic.topic_id: rank for rank, each in enumerate(lost)},
            **dict.fromkeys(there, len(lost)),
        },
        topic_runs={each.topic.topic_id: each.run_id for each in lost},
        config_runs={topic_id: each.run_id for topic_id, each in described.items()},
        offset_runs={offset.place: offset.run_id for offset in carried.offsets},
        access_runs={each.what: each.run_id for each in carried.access if each.cluster_id == cluster.cluster_id},
    )


def _described(topic: TopicState, carried: LostTopic | None) -> TopicState:
    if carried is None or topic.configs is not None:
        return topic
    return replace(topic, configs=carried.topic.configs, effective=carried.topic.effective)


def _groups(cluster: ClusterState, lost: Iterable[LostOffset], ids: Mapping[str, str]) -> Iterator[Group]:
    """The groups, completed with lost offsets. Those that lost nothing, usually most, stay the same objects."""
    more: dict[str, list[LostOffset]] = {}
    for each in lost:
        more.setdefault(each.group_id, []).append(each)
    for group in cluster.groups:
        own, behind = group.offsets or (), more.pop(group.group_id, ())
        if behind or any(each.topic_id is None and each.topic in ids for each in own):
            named = (each if each.topic_id else replace(each, topic_id=ids.get(each.topic)) for each in own)
            yield replace(group, offsets=(*named, *(each.committed for each in behind)))
        else:
            yield group
    for group_id, gone in more.items():
        yield Group(
            group_id=group_id,
            type=gone[0].type,
            state=GONE,
            protocol_type=gone[0].protocol_type,
            offsets=tuple(each.committed for each in gone),
        )


def _access(cluster: ClusterState, carried: Carried, lost: Sequence[LostTopic]) -> dict[str, Any]:
    """ACLs, quotas and users. Those of the run's own cluster take precedence over other clusters'."""
    found: dict[str, Any] = {}
    for what in ACCESS:
        lists = [each for each in carried.access if each.what == what]
        own = getattr(cluster, what)
        for each in sorted(lists, key=lambda each: each.cluster_id != cluster.cluster_id):
            known = {_identity(one) for one in own or ()}
            own = (*(own or ()), *(one for one in each.values if _identity(one) not in known))
        found[what] = own
    acls: tuple[Acl, ...] | None = found["acls"]
    rules = [rule for each in lost for rule in each.acls if not _is_covered(rule, acls or ())]
    if acls is not None or rules:
        found["acls"] = (*(acls or ()), *dict.fromkeys(rules))
    return found


def _identity(value: Any) -> object:  # noqa: ANN401 - an ACL, a quota or a user
    """Quotas with the same entities are the same quota, and users with the same name the same user."""
    return getattr(value, "entities", None) or (getattr(value, "mechanism", None) and value.name) or value


def _is_covered(rule: Acl, acls: Iterable[Acl]) -> bool:
    """Whether another rule already says the same about this topic."""
    return any(
        is_about(acl, rule.resource_name)
        and replace(acl, resource_name=rule.resource_name, pattern_type=rule.pattern_type) == rule
        for acl in acls
        if acl.resource_type == rule.resource_type
    )

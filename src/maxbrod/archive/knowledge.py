"""An archive's knowledge of a cluster: what a run saw, and what the cluster has lost, carried on. Pure.

Each entry keeps the run that last saw it. A snapshot is made from the cluster and the snapshot before it, never from
older ones. So the thousandth run costs as much as the first, and older snapshots may be deleted.

- A topic is carried on while the archive has offsets of its id. A topic of the same name with another id is another
  topic.
- A committed offset belongs to one group and one partition of one topic id. It is carried on if the group was deleted,
  if the group's offset for the partition expired, and if the offsets of the group could not be read.
- ACLs of a topic are those of the run that last saw the topic, each narrowed to that topic.
- All ACLs, quotas, users or settings of a cluster are carried on if they could not be read, or are those of another
  cluster of which the archive has topics. If they could be read and one is gone, it was removed on purpose and stays
  removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, TypeAlias

from maxbrod.archive.snapshot_document import Snapshot
from maxbrod.errors import CorruptDataError, naming
from maxbrod.kafka.state.cluster_state import (
    Acl,
    ClusterState,
    CommittedOffset,
    EntitySettings,
    Group,
    Quota,
    ScramUser,
    TopicState,
    decode_state,
)
from maxbrod.strict_json import value_of

Place: TypeAlias = tuple[str, str, int]
"""A group, a topic id and a partition."""
_ACCESS_TYPES: Final = {
    "acls": (Acl, "acl"),
    "quotas": (Quota, "quota"),
    "users": (ScramUser, "user"),
    "settings": (EntitySettings, "settings"),
}
ACCESS: Final = tuple(_ACCESS_TYPES)

_OFFSET_FIELDS: Final = ("partition", "offset", "leader_epoch", "metadata")
"""A committed offset in a document, as a list."""
LITERAL: Final = "LITERAL"
PREFIXED: Final = "PREFIXED"
ALL: Final = "*"
"""The resource name of an ACL for every topic."""

GONE: Final = "Dead"
"""Kafka's own word for the state of a group that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTopic:
    """A topic as a run last saw it. If the topic still exists, only its configuration is used."""

    run_id: str
    cluster_id: str | None
    topic: TopicState
    acls: tuple[Acl, ...] = ()
    """Its ACLs at that time, each narrowed to this topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostOffset:
    """A committed offset as a run last saw it."""

    run_id: str
    group_id: str
    type: str
    protocol_type: str
    committed: CommittedOffset
    """Always with a topic id."""

    @property
    def place(self) -> Place:
        return self.group_id, self.committed.topic_id or "", self.committed.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAccess:
    """All ACLs, quotas, users or settings of a cluster, as a run last read them."""

    run_id: str
    cluster_id: str | None
    what: str
    """One of `ACCESS`."""
    values: tuple[Acl | Quota | ScramUser | EntitySettings, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    topics: tuple[LostTopic, ...] = ()
    """In the order in which the cluster lost them, so of topics with one name the last is the newest."""
    offsets: tuple[LostOffset, ...] = ()
    access: tuple[LostAccess, ...] = ()


NOTHING: Final = Carried()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKnowledge:
    """A run's knowledge of its cluster: what it saw, and what it carries on."""

    run_id: str
    cluster: ClusterState
    carried: Carried = NOTHING


def carry(older: RunKnowledge, newer: ClusterState, held: Mapping[str, str], carried: Carried = NOTHING) -> Carried:
    """Return what an older run knew and neither `newer` nor `carried` has, merged with `carried`.

    `held` maps each topic id that the archive holds to its name.
    """
    topics = _carry_topics(older, newer, held, carried)
    return Carried(
        topics=topics,
        offsets=_carry_offsets(older, newer, held, carried, topics),
        access=_carry_access(older, newer, carried, {topic.cluster_id for topic in topics}),
    )


def _carry_topics(
    older: RunKnowledge, newer: ClusterState, held: Collection[str], carried: Carried
) -> tuple[LostTopic, ...]:
    there = {topic.topic_id: topic for topic in newer.topics}
    known_already = {topic.topic.topic_id for topic in carried.topics}
    seen = {topic.topic_id: topic for topic in older.cluster.topics}
    found: dict[str, LostTopic] = {}
    lost = partial(LostTopic, run_id=older.run_id, cluster_id=older.cluster.cluster_id)
    for known in (*older.carried.topics, *(lost(topic=topic) for topic in older.cluster.topics)):
        topic_id = known.topic.topic_id
        if topic_id not in held or topic_id in known_already or _is_described(there.get(topic_id)):
            continue
        if topic_id in there and not _is_described(known.topic):
            continue
        # The later run may have lacked the permission to describe the topic. Then the earlier description stays.
        before = found.pop(topic_id, None)
        found[topic_id] = known if before is None or _is_described(known.topic) else before
    rules = [acl for acl in older.cluster.acls or () if acl.resource_type == "TOPIC"]
    for topic_id in found.keys() & seen if older.cluster.acls is not None else ():
        name = seen[topic_id].name
        # Narrowed to the topic: a rule for many topics may have been removed for a reason.
        narrowed = {replace(acl, resource_name=name, pattern_type=LITERAL) for acl in rules if is_about(acl, name)}
        found[topic_id] = replace(found[topic_id], acls=tuple(sorted(narrowed)))
    return *found.values(), *carried.topics


def _is_described(topic: TopicState | None) -> bool:
    return topic is not None and topic.configs is not None


def _carry_offsets(
    older: RunKnowledge,
    newer: ClusterState,
    held: Mapping[str, str],
    carried: Carried,
    topics: Iterable[LostTopic],
) -> tuple[LostOffset, ...]:
    known = {offset.place for offset in carried.offsets}
    known.update(place for _, _, place in places_of(newer, _ids_by_name(held, topics)))
    found: list[LostOffset] = []
    for group, committed, place in places_of(older.cluster, _ids_by_name(held, older.carried.topics)):
        if place[1] in held and place not in known:
            offset = LostOffset(
                run_id=older.run_id,
                group_id=group.group_id,
                type=group.type,
                protocol_type=group.protocol_type,
                committed=replace(committed, topic_id=place[1]),
            )
            found.append(offset)
        known.add(place)
    found += [offset for offset in older.carried.offsets if offset.place[1] in held and offset.place not in known]
    return tuple(sorted((*found, *carried.offsets), key=lambda offset: offset.place))


def places_of(cluster: ClusterState, ids: Mapping[str, str]) -> Iterator[tuple[Group, CommittedOffset, Place]]:
    """Every committed offset that a run has read. `ids` maps names to topic ids for topics that Kafka had deleted."""
    for group in cluster.groups:
        for offset in group.offsets or ():
            yield group, offset, (group.group_id, offset.topic_id or ids.get(offset.topic, ""), offset.partition)


def _ids_by_name(held: Mapping[str, str], lost: Iterable[LostTopic]) -> dict[str, str]:
    """Topic ids by name. A group may have offsets in a deleted topic: that is the one which was lost last."""
    names = {name: topic_id for topic_id, name in held.items()}
    return {**names, **{topic.topic.name: topic.topic.topic_id for topic in lost}}


def _carry_access(
    older: RunKnowledge, newer: ClusterState, carried: Carried, clusters: Collection[str | None]
) -> tuple[LostAccess, ...]:
    known = {(entry.cluster_id, entry.what) for entry in carried.access}
    known |= {(newer.cluster_id, what) for what in ACCESS if getattr(newer, what) is not None}
    found = list(carried.access)
    own = (
        LostAccess(run_id=older.run_id, cluster_id=older.cluster.cluster_id, what=what, values=values)
        for what in ACCESS
        if (values := getattr(older.cluster, what)) is not None
    )
    for entry in (*own, *older.carried.access):
        needed = entry.cluster_id == newer.cluster_id or entry.cluster_id in clusters
        if needed and (entry.cluster_id, entry.what) not in known:
            known.add((entry.cluster_id, entry.what))
            found.append(entry)
    return tuple(sorted(found, key=lambda entry: (entry.cluster_id or "", entry.what)))


def encode_carried(carried: Carried) -> dict[str, Any]:
    """Plain JSON values."""
    return {
        "topics": [asdict(topic) for topic in carried.topics],
        "groups": [
            {
                **dict(zip(("group_id", "type", "protocol_type", "run_id", "topic", "topic_id"), key, strict=True)),
                "offsets": [[getattr(offset.committed, name) for name in _OFFSET_FIELDS] for offset in group],
            }
            for key, group in groupby(
                sorted(carried.offsets, key=lambda offset: (_same_topic(offset), offset.committed.partition)),
                key=_same_topic,
            )
        ],
        "access": [asdict(entry) for entry in carried.access],
    }


def _same_topic(offset: LostOffset) -> tuple[str, ...]:
    topic = offset.committed
    return offset.group_id, offset.type, offset.protocol_type, offset.run_id, topic.topic, topic.topic_id or ""


def decode_carried(fields: Mapping[str, Any]) -> Carried:
    """The inverse of `encode_carried`. Unknown keys are ignored."""
    try:
        return Carried(
            topics=tuple(value_of(LostTopic, topic, "topics") for topic in fields["topics"]),
            offsets=tuple(
                sorted((lost for group in fields["groups"] for lost in _decode_group(group)), key=attrgetter("place"))
            ),
            access=tuple(map(_decode_access, fields["access"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(f"what a snapshot carries on cannot be read: {error}") from error


def _decode_access(fields: Mapping[str, Any]) -> LostAccess:
    kind, name = _ACCESS_TYPES[fields["what"]]
    values: tuple[Any, ...] = tuple(value_of(kind, value, name) for value in fields["values"])
    return replace(value_of(LostAccess, {**fields, "values": []}, "access"), values=values)


def _decode_group(fields: Mapping[str, Any]) -> Iterator[LostOffset]:
    about = {name: fields[name] for name in ("run_id", "group_id", "type", "protocol_type")}
    topic, topic_id = fields["topic"], fields["topic_id"]
    for values in fields["offsets"]:
        committed = {"topic": topic, "topic_id": topic_id, **dict(zip(_OFFSET_FIELDS, values, strict=True))}
        yield value_of(LostOffset, {**about, "committed": committed}, "groups")


def is_about(acl: Acl, name: str) -> bool:
    """True if an ACL of topics applies to the topic of this name."""
    if acl.pattern_type == PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.pattern_type == LITERAL and acl.resource_name in {name, ALL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The cluster as a run saw it, merged with what the run carries on.

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
    """The run that last read the ACLs, quotas, users or settings of this cluster, where the run itself could not."""


def knowledge_of(snapshot: Snapshot) -> RunKnowledge:
    """Decode a snapshot's knowledge of its cluster. CorruptDataError, UnsupportedFormatError: it cannot be read."""
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
    ids = {topic.topic.name: topic.topic.topic_id for topic in lost}
    return Known(
        cluster=replace(
            cluster,
            topics=(
                *(
                    topic
                    if topic.configs is not None or (before := described.get(topic.topic_id)) is None
                    else replace(topic, configs=before.topic.configs, effective=before.topic.effective)
                    for topic in cluster.topics
                ),
                *(topic.topic for topic in reversed(lost)),
            ),
            groups=tuple(_groups(cluster, carried.offsets, ids)),
            **_access(cluster, carried, lost),
        ),
        ranks={
            **{topic.topic.topic_id: rank for rank, topic in enumerate(lost)},
            **dict.fromkeys(there, len(lost)),
        },
        topic_runs={topic.topic.topic_id: topic.run_id for topic in lost},
        config_runs={topic_id: topic.run_id for topic_id, topic in described.items()},
        offset_runs={offset.place: offset.run_id for offset in carried.offsets},
        access_runs={entry.what: entry.run_id for entry in carried.access if entry.cluster_id == cluster.cluster_id},
    )


def _groups(cluster: ClusterState, lost: Iterable[LostOffset], ids: Mapping[str, str]) -> Iterator[Group]:
    """The groups, completed with lost offsets. Those that lost nothing, usually most, stay the same objects."""
    more: dict[str, list[LostOffset]] = {}
    for offset in lost:
        more.setdefault(offset.group_id, []).append(offset)
    for group in cluster.groups:
        own, behind = group.offsets or (), more.pop(group.group_id, ())
        if behind or any(offset.topic_id is None and offset.topic in ids for offset in own):
            named = (offset if offset.topic_id else replace(offset, topic_id=ids.get(offset.topic)) for offset in own)
            yield replace(group, offsets=(*named, *(offset.committed for offset in behind)))
        else:
            yield group
    for group_id, gone in more.items():
        yield Group(
            group_id=group_id,
            type=gone[0].type,
            state=GONE,
            protocol_type=gone[0].protocol_type,
            offsets=tuple(offset.committed for offset in gone),
        )


def _access(cluster: ClusterState, carried: Carried, lost: Sequence[LostTopic]) -> dict[str, Any]:
    """ACLs, quotas, users and settings. Those of the run's own cluster take precedence over other clusters'."""
    found: dict[str, Any] = {}
    for what in ACCESS:
        lists = [entry for entry in carried.access if entry.what == what]
        own = getattr(cluster, what)
        for entry in sorted(lists, key=lambda entry: entry.cluster_id != cluster.cluster_id):
            known = {_identity(value) for value in own or ()}
            own = (*(own or ()), *(value for value in entry.values if _identity(value) not in known))
        found[what] = own
    acls: tuple[Acl, ...] | None = found["acls"]
    rules = [rule for topic in lost for rule in topic.acls if not _is_covered(rule, acls or ())]
    if acls is not None or rules:
        found["acls"] = (*(acls or ()), *dict.fromkeys(rules))
    return found


def _identity(value: Any) -> object:  # noqa: ANN401 - an ACL, a quota or a user
    """Quotas with the same entities are the same quota, and users with the same name the same user."""
    if isinstance(value, EntitySettings):
        return value.kind, value.name
    return getattr(value, "entities", None) or (getattr(value, "mechanism", None) and value.name) or value


def _is_covered(rule: Acl, acls: Iterable[Acl]) -> bool:
    """True if another rule already says the same about this topic."""
    return any(
        is_about(acl, rule.resource_name)
        and replace(acl, resource_name=rule.resource_name, pattern_type=rule.pattern_type) == rule
        for acl in acls
        if acl.resource_type == rule.resource_type
    )

"""The cluster to restore into: its state and what this user may do there, its topics, ACLs and quotas.

Every step that changes something may run again after a crash: what is already done is not done twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from maxbrod.errors import MaxbrodError, RefusedError, UnavailableError
from maxbrod.kafka.admin import (
    ChangeOutcome,
    NewTopic,
    alter_configs,
    create_acls,
    create_topics,
    delete_records,
    set_quotas,
)
from maxbrod.kafka.fetch.offsets import EARLIEST, list_offsets, log_ends
from maxbrod.kafka.produce.appends import Feed, sequence_after
from maxbrod.kafka.produce.empty_offsets import fillers
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.state.access import (
    Operations,
    cluster_operations,
    group_operations,
    may_write_markers,
    read_quotas,
    topic_operations,
)
from maxbrod.kafka.state.capture import NO_AUTHORIZER, capture
from maxbrod.kafka.state.cluster_state import GROUP_SETTINGS
from maxbrod.kafka.state.settings import KINDS, read_settings
from maxbrod.kafka.state.topics import read_defaults, read_known_configs, see_topics
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.coordination import TRANSACTION, ask_for_coordinator
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.model import TopicPartition, is_topic_name, topic_id_of, topic_id_text
from maxbrod.restore.items import transactional_id_of
from maxbrod.restore.plan.access import describe_acl, describe_quota, lacking, plan_quotas
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.plan import RestorePlan, check_topic
from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.restore.plan.targets import MESSAGE_BYTES_DEFAULT, ConfigChange, LogExtent, Right, TargetState, TargetTopic

_MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_ON_CLUSTER: Final = {
    Right.CLUSTER_ACTION: "CLUSTER_ACTION",
    Right.ALTER_CLUSTER: "ALTER",
    Right.ALTER_CLUSTER_CONFIGS: "ALTER_CONFIGS",
}
_ON_TOPICS: Final = (Right.WRITE, Right.READ, Right.DELETE, Right.ALTER_CONFIGS)
_COORDINATORS_S: Final = 30.0
"""A coordinator that is down does not delay a plan for longer: rights on its groups are unknown then."""
_HOLES_HINT: Final = (
    "allow ClusterAction and Describe on the cluster, or Write on transactional ids that begin with 'maxbrod-'; "
    "or say --offsets append"
)
_AGAIN: Final = "correct that and run the same command again, which resumes here"


def look_at_target(
    client: KafkaClient, names: Collection[str], groups: Collection[str] = (), *, patience_s: float
) -> TargetState:
    """The state of the cluster as far as it concerns the topics `names` and the `groups` to restore to."""
    # Brokers refuse requests about names that Kafka does not allow.
    possible = [name for name in names if is_topic_name(name)]
    cluster = capture(client, possible, groups, settings=True, deadline=Deadline.after(patience_s))
    partitions = [
        TopicPartition(topic=topic.name, partition=number)
        for topic in cluster.topics
        if not topic.internal
        for number in range(topic.partition_count)
    ]
    missing = {name for name in names if cluster.topic(name) is None}
    rights, denied = look_at_rights(client, names, groups, missing=missing, patience_s=patience_s)
    existing = frozenset(see_topics(client, None, deadline=Deadline.after(patience_s)).topics)
    return TargetState(
        cluster=cluster,
        names=existing,
        known_configs=read_known_configs(client, existing, deadline=Deadline.after(patience_s)),
        extents=log_extents(client, partitions, patience_s),
        defaults=read_defaults(client, deadline=Deadline.after(patience_s)),
        rights=rights,
        denied=denied,
        authorized=all(gap.why != NO_AUTHORIZER for gap in cluster.gaps),
    )


def log_extents(
    client: KafkaClient, partitions: list[TopicPartition], patience_s: float
) -> dict[TopicPartition, LogExtent]:
    if not partitions:
        return {}
    starts = list_offsets(client, dict.fromkeys(partitions, EARLIEST), deadline=Deadline.after(patience_s))
    ends = log_ends(client, partitions, deadline=Deadline.after(patience_s))
    return {where: LogExtent(start=min(starts[where].offset, ends[where]), end=ends[where]) for where in partitions}


def look_at_rights(
    client: KafkaClient,
    topics: Collection[str],
    groups: Collection[str],
    *,
    missing: Collection[str],
    patience_s: float,
) -> tuple[dict[Right, bool], dict[Right, tuple[str, ...]]]:
    """Return the rights of this user, as far as brokers reveal them; the topics and groups on which a right is denied.

    `missing` are the topics that the restore would create.
    """
    found: dict[Right, bool] = {}
    denied: dict[Right, tuple[str, ...]] = {}
    on_cluster = cluster_operations(client, deadline=Deadline.after(patience_s))
    if on_cluster is not None:
        found |= {right: operation in on_cluster for right, operation in _ON_CLUSTER.items()}
    # Holes are filled the slow way, which needs no right, unless brokers say that the fast one is allowed.
    found.setdefault(Right.CLUSTER_ACTION, False)
    on_topics = topic_operations(client, topics, deadline=Deadline.after(patience_s))
    for right in _ON_TOPICS:
        _judge(right, right.name, on_topics, topics, found, denied)
    if "CREATE" in (on_cluster or ()):
        found[Right.CREATE] = True
    else:
        on_missing = {name: allowed for name, allowed in on_topics.items() if name in missing}
        _judge(Right.CREATE, "CREATE", on_missing, missing, found, denied)
    limit = Deadline.after(min(patience_s, _COORDINATORS_S))
    on_groups = group_operations(client, groups, deadline=limit) if groups else {}
    _judge(Right.READ_GROUPS, "READ", on_groups, groups, found, denied)
    return found, denied


def _judge(
    right: Right,
    operation: str,
    operations: Mapping[str, Operations],
    names: Collection[str],
    found: dict[Right, bool],
    denied: dict[Right, tuple[str, ...]],
) -> None:
    """A right that is denied on one of many names is denied: the restore would stop there."""
    without = tuple(sorted(name for name, allowed in operations.items() if operation not in allowed))
    if without:
        found[right], denied[right] = False, without
    elif len(operations) == len(names):
        found[right] = True


def refused_creations(client: KafkaClient, plan: RestorePlan, *, patience_s: float) -> Iterator[Obstacle]:
    """Settings that the cluster refuses for topics that the plan creates. Brokers judge them without creating any."""
    told = {obstacle.where for obstacle in plan.obstacles if obstacle.kind is ObstacleKind.CONFIG and obstacle.fatal}
    new = [
        _new_topic(topic.target, {**topic.target.configs.create, **topic.target.configs.final})
        for topic in plan.topics
        if not topic.target.exists
        and topic.target.configs
        and is_topic_name(topic.target.name)
        and topic.target.name not in told
    ]
    outcomes = create_topics(client, new, validate_only=True, deadline=Deadline.after(patience_s)) if new else {}
    for name, outcome in outcomes.items():
        # Other reasons have obstacles of their own.
        if outcome.code in {Code.INVALID_CONFIG, Code.POLICY_VIOLATION}:
            yield Obstacle(
                ObstacleKind.CONFIG,
                name,
                f"the cluster refuses the topic's configuration: {outcome.reason}",
                "give the topic another value with --config-set NAME=VALUE",
            )


def missing_transactions(client: KafkaClient, plan: RestorePlan, *, patience_s: float) -> Iterator[Obstacle]:
    """An obstacle if this user can neither write markers into holes nor fill them with empty transactions.

    The catalog does not record the holes that markers of committed transactions leave, so there may be more holes.
    """
    exact = [
        (str(where), partition.offsets.cost.holes)
        for topic in plan.topics
        for where, partition in topic.placed()
        if partition.offsets.mode is OffsetsMode.EXACT
    ]
    where, holes = max(exact, key=lambda pair: pair[1], default=(None, 0))
    if where is None:
        return
    transactional_id = transactional_id_of(plan.restore_id, where)
    try:
        code, _ = ask_for_coordinator(client, transactional_id, TRANSACTION, deadline=Deadline.after(patience_s))
    except MaxbrodError:
        return  # unknown
    if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        what = "this user may neither write markers into holes nor use a transactional id instead"
        yield Obstacle(
            ObstacleKind.PERMISSION if holes else ObstacleKind.RIGHT_UNKNOWN,
            where,
            what if holes else f"{what}, which is needed if transactions were written to it",
            _HOLES_HINT,
            fatal=bool(holes),
        )


class TargetTopics:
    """The target topics of one plan."""

    def __init__(self, client: KafkaClient, *, patience_s: float) -> None:
        self._client = client
        self._patience_s = patience_s
        self.ids: dict[str, str] = {}
        """The ids of the target topics, by name."""
        self.markers_allowed = may_write_markers(client, deadline=self._deadline())

    def prepare(self, plan: RestorePlan, created: Mapping[str, str]) -> None:
        """Create topics that are missing, and pause retention and compaction in all of them.

        `created` are the ids of topics that this restore created before it was interrupted.
        """
        names = [topic.target.name for topic in plan.topics]
        present = capture(self._client, names, (), deadline=self._deadline())
        missing = []
        for topic in plan.topics:
            target, found = topic.target, present.topic(topic.target.name)
            partitions = [
                TopicPartition(topic=target.name, partition=number) for number in range(target.partition_count)
            ]
            extents = {} if found is None else log_extents(self._client, partitions, self._patience_s)
            empty = all(extent.end == 0 for extent in extents.values())
            if not check_topic(target, found, created.get(target.name), empty=empty):
                missing.append(target)
        self._create(missing)
        self._alter({topic.target.name: topic.target.configs.hold for topic in plan.topics if topic.target.configs})
        self._learn_ids(topic.target for topic in plan.topics)

    def fill_starts(self, plan: RestorePlan, producer_id: int) -> None:
        """Move logs that start later than at 0 to their first offset with filler records, and delete the fillers.

        A broker gives the first batch of an empty log the offset 0, and no request sets another one. So exact offsets
        need records up to the first offset; deleting them moves the start of the log. Fillers have a producer id of
        their own and sequence numbers that follow from their offsets, so those of an earlier attempt that arrive late
        are duplicates.
        """
        wanted = [
            StartToFill(
                where=where,
                topic_id=self.ids[topic.target.name],
                base=topic.target.bases[partition.source.partition],
                first=partition.source.first_offset,
            )
            for topic in plan.topics
            for where, partition in topic.placed()
            if partition.offsets.mode is OffsetsMode.EXACT
            and partition.source.first_offset > topic.target.bases[partition.source.partition]
        ]
        fill_starts(self._client, wanted, producer_id, patience_s=self._patience_s)

    def release(self, plan: RestorePlan) -> None:
        """Give the topics their final configuration: retention and compaction run again."""
        self._alter({topic.target.name: topic.target.configs.release for topic in plan.topics if topic.target.configs})

    def batch_bytes_max(self, target: TargetTopic) -> int:
        configs = target.configs
        known = {} if configs is None else {**configs.final, **configs.create, **configs.hold.set}
        return int(known.get(_MAX_MESSAGE_BYTES, MESSAGE_BYTES_DEFAULT))

    def _create(self, targets: Iterable[TargetTopic]) -> None:
        new = [_new_topic(target, target.configs.create if target.configs else {}) for target in targets]
        if new:
            _refuse_failed(create_topics(self._client, new, deadline=self._deadline()), "create the topic")

    def _alter(self, changes: Mapping[str, ConfigChange]) -> None:
        configs = {
            name: {**dict(change.set), **dict.fromkeys(change.delete)} for name, change in changes.items() if change
        }
        if configs:
            _refuse_failed(alter_configs(self._client, configs, deadline=self._deadline()), "configure the topic")

    def _learn_ids(self, targets: Iterable[TargetTopic]) -> None:
        names = sorted(target.name for target in targets)

        def once(limit: Deadline) -> None:
            found = self._client.metadata(names, deadline=limit).topics
            for name in names:
                leaders = (
                    [] if name not in found else [partition.leader for partition in found[name].partitions.values()]
                )
                if not leaders or None in leaders:
                    raise UnavailableError("the topic has no leaders yet", object_name=name)
                self.ids[name] = topic_id_text(found[name].topic_id)

        retry(once, deadline=self._deadline(), what="leaders of the topics")

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartToFill:
    """A log that began at `base`, and is to begin at `first`."""

    where: TopicPartition
    topic_id: str
    base: int
    first: int


def fill_starts(client: KafkaClient, wanted: Iterable[StartToFill], producer_id: int, *, patience_s: float) -> None:
    """Append fillers up to the first offset of each log, and delete them. May be repeated after a crash."""
    identity = ProducerIdentity(producer_id=producer_id, epoch=0)
    starts = {start.where: start for start in wanted}
    if not starts:
        return
    found = log_extents(client, list(starts), patience_s)
    feeds = [
        Feed(
            where=where,
            topic_id=topic_id_of(start.topic_id),
            first_offset=found[where].end,
            appends=fillers(
                start.first - found[where].end,
                identity,
                first_sequence=sequence_after(0, found[where].end - start.base),
            ),
        )
        for where, start in starts.items()
        if found[where].end < start.first
    ]
    for acknowledged in produce_all(client, feeds, patience_s=patience_s):
        if client.stop is not None and client.stop.is_set():
            raise UnavailableError("the restore was stopped", object_name=str(acknowledged.where))
    # Only where there are fillers: a topic that has its own configuration again may refuse this.
    filled = {where: start.first for where, start in starts.items() if found[where].start < start.first}
    _, failed = delete_records(client, filled, deadline=Deadline.after(patience_s))
    for error in failed.values():
        raise error


def restore_acls(client: KafkaClient, plan: RestorePlan, *, patience_s: float) -> None:
    """Create the ACLs of the plan before any record, so that nobody may read more than before.

    RefusedError: brokers refused at least one. It names the first and counts the others.
    """
    if plan.access.acls is not None and plan.access.acls.create:
        outcomes = create_acls(client, plan.access.acls.create, deadline=Deadline.after(patience_s))
        _refuse_failed({describe_acl(acl): outcome for acl, outcome in outcomes.items()}, "create the ACL")


def restore_quotas(client: KafkaClient, plan: RestorePlan, *, patience_s: float) -> None:
    """Set the quotas of the plan after all records, so that they do not slow the restore down.

    Quotas that somebody has set since planning stay. RefusedError as above.
    """
    if plan.access.quotas is None or not plan.access.quotas.set:
        return
    present = read_quotas(client, deadline=Deadline.after(patience_s))
    missing = plan_quotas(plan.access.quotas.set, present).set
    outcomes = set_quotas(client, missing, deadline=Deadline.after(patience_s)) if missing else {}
    names = {quota.entities: describe_quota(quota) for quota in missing}
    _refuse_failed({names[entities]: outcome for entities, outcome in outcomes.items()}, "set the quota")


def restore_settings(client: KafkaClient, plan: RestorePlan, *, patience_s: float) -> None:
    """Set the settings of the plan, before groups move: the first member of a share group begins by them.

    Values that somebody has set since planning stay. RefusedError as above.
    """
    if plan.access.settings is None or not plan.access.settings.set:
        return
    names = [entity.name for entity in plan.access.settings.set if entity.kind == GROUP_SETTINGS]
    present = {
        (entity.kind, entity.name): entity.values
        for entity in read_settings(client, groups=names, deadline=Deadline.after(patience_s))
    }
    for number, kind in KINDS.items():
        wanted = {
            entity.name: values
            for entity in plan.access.settings.set
            if entity.kind == kind and (values := lacking(entity.values, present.get((kind, entity.name), {})))
        }
        if wanted:
            outcomes = alter_configs(client, wanted, kind=number, deadline=Deadline.after(patience_s))
            _refuse_failed({f"{kind} {name}": outcome for name, outcome in outcomes.items()}, "change the settings of")


def _new_topic(target: TargetTopic, configs: Mapping[str, str]) -> NewTopic:
    return NewTopic(
        name=target.name,
        partitions=target.partition_count,
        replication_factor=target.replication_factor,
        configs=dict(configs),
    )


def _refuse_failed(outcomes: Mapping[str, ChangeOutcome], what: str) -> None:
    refused = {name: outcome for name, outcome in outcomes.items() if not outcome.done}
    for name, outcome in refused.items():
        more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise RefusedError(f"cannot {what}: {outcome.reason}{more}", operation="restore", object_name=name, hint=_AGAIN)

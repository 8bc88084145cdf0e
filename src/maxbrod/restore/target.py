"""The cluster that is restored into: what is there, topics made ready, starts of logs filled, all set right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError, UnavailableError
from maxbrod.kafka.admin.rights import may_write_markers
from maxbrod.kafka.admin.topics import NewTopic, alter_configs, create_topics, delete_records
from maxbrod.kafka.fetch.log_ends import log_ends
from maxbrod.kafka.fetch.offsets import EARLIEST, list_offsets
from maxbrod.kafka.produce.appends import Feed, sequence_after
from maxbrod.kafka.produce.filling import fillers
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.produce.producing import produce_all
from maxbrod.kafka.state.capture import NO_AUTHORIZER, capture
from maxbrod.kafka.state.topics import read_defaults, see_topics
from maxbrod.kafka.wire.client import retry
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition, topic_id_of, topic_id_text
from maxbrod.restore.plan.configs import MESSAGE_BYTES_DEFAULT
from maxbrod.restore.plan.rename import is_topic_name
from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.restore.plan.resume import check_topic
from maxbrod.restore.plan.targets import LogExtent, TargetState
from maxbrod.restore.rights import look_at_rights

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from maxbrod.kafka.admin.outcomes import Outcome
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.restore.plan.configs import ConfigChange
    from maxbrod.restore.plan.plan import RestorePlan
    from maxbrod.restore.plan.targets import TargetTopic

_MAX_MESSAGE_BYTES: Final = "max.message.bytes"


def look_at_target(
    client: KafkaClient, names: Collection[str], groups: Collection[str] = (), *, patience_s: float
) -> TargetState:
    """Of the cluster as it is now what concerns `names` and `groups`, which are those that are restored to."""
    # Brokers do not look for names that Kafka does not allow.
    possible = [name for name in names if is_topic_name(name)]
    cluster = capture(client, possible, groups, deadline=Deadline.after(patience_s))
    partitions = [
        TopicPartition(topic=topic.name, partition=number)
        for topic in cluster.topics
        if not topic.internal
        for number in range(topic.partition_count)
    ]
    missing = {name for name in names if cluster.topic(name) is None}
    rights, denied = look_at_rights(client, names, groups, missing=missing, patience_s=patience_s)
    return TargetState(
        cluster=cluster,
        names=frozenset(see_topics(client, None, deadline=Deadline.after(patience_s)).topics),
        extents=_extents(client, partitions, patience_s),
        defaults=read_defaults(client, deadline=Deadline.after(patience_s)),
        rights=rights,
        denied=denied,
        authorized=all(gap.why != NO_AUTHORIZER for gap in cluster.gaps),
    )


def _extents(
    client: KafkaClient, partitions: list[TopicPartition], patience_s: float
) -> dict[TopicPartition, LogExtent]:
    if not partitions:
        return {}
    starts = list_offsets(client, dict.fromkeys(partitions, EARLIEST), deadline=Deadline.after(patience_s))
    ends = log_ends(client, partitions, deadline=Deadline.after(patience_s))
    return {where: LogExtent(start=min(starts[where].offset, ends[where]), end=ends[where]) for where in partitions}


class TargetTopics:
    """The topics of one plan. Every step may be done again after a crash."""

    def __init__(self, client: KafkaClient, *, patience_s: float) -> None:
        self._client = client
        self._patience_s = patience_s
        self.ids: dict[str, str] = {}
        """Of the topics that are restored to, by name."""
        self.markers_allowed = may_write_markers(client, deadline=self._deadline())

    def prepare(self, plan: RestorePlan, created: Mapping[str, str]) -> None:
        """Create what is missing; hold what would delete, compact or redate what is restored.

        `created` are the ids of topics that this restore made before it was interrupted.
        """
        names = [topic.target.name for topic in plan.topics]
        present = capture(self._client, names, (), deadline=self._deadline())
        missing = []
        for topic in plan.topics:
            target, found = topic.target, present.topic(topic.target.name)
            empty = found is None or self._is_empty(target)
            if not check_topic(target, found, created.get(target.name), empty=empty):
                missing.append(target)
        self._create(missing)
        self._alter({each.target.name: each.target.configs.hold for each in plan.topics if each.target.configs})
        self._learn_ids(topic.target for topic in plan.topics)

    def fill_starts(self, plan: RestorePlan, producer_id: int) -> None:
        """Bring logs that are to begin later than at 0 to their first offset, and delete the fillers."""
        identity = ProducerIdentity(producer_id=producer_id, epoch=0)
        bases = {
            TopicPartition(topic=topic.target.name, partition=number): base
            for topic in plan.topics
            for number, base in enumerate(topic.target.bases)
        }
        wanted = {
            TopicPartition(topic=topic.target.name, partition=each.source.partition): each.source.first_offset
            for topic in plan.topics
            for each in topic.partitions
            if each.offsets.mode is OffsetsMode.EXACT
            and each.source.first_offset > topic.target.bases[each.source.partition]
        }
        if not wanted:
            return
        found = _extents(self._client, list(wanted), self._patience_s)
        feeds = [
            Feed(
                where=where,
                topic_id=topic_id_of(self.ids[where.topic]),
                first_offset=found[where].end,
                appends=fillers(
                    first - found[where].end,
                    identity,
                    first_sequence=sequence_after(0, found[where].end - bases[where]),
                ),
            )
            for where, first in wanted.items()
            if found[where].end < first
        ]
        for acknowledged in produce_all(self._client, feeds, patience_s=self._patience_s):
            if self._client.stop is not None and self._client.stop.is_set():
                raise UnavailableError("nobody waits for it any more", object_name=str(acknowledged.where))
        # Only where there are any: a topic that has its own configuration again may refuse this.
        begun = {where: first for where, first in wanted.items() if found[where].start < first}
        _, failed = delete_records(self._client, begun, deadline=self._deadline())
        for error in failed.values():
            raise error

    def release(self, plan: RestorePlan) -> None:
        """Configure the topics as they shall be from now on."""
        self._alter({each.target.name: each.target.configs.release for each in plan.topics if each.target.configs})

    def batch_bytes_max(self, target: TargetTopic) -> int:
        configs = target.configs
        told = None
        if configs is not None:
            told = {**configs.final, **configs.create, **configs.hold.set}.get(_MAX_MESSAGE_BYTES)
        return MESSAGE_BYTES_DEFAULT if told is None else int(told)

    def _create(self, targets: Iterable[TargetTopic]) -> None:
        wanted = [
            NewTopic(
                name=each.name,
                partitions=each.partition_count,
                replication_factor=each.replication_factor,
                configs=dict(each.configs.create) if each.configs else {},
            )
            for each in targets
        ]
        if wanted:
            self._demand(create_topics(self._client, wanted, deadline=self._deadline()), "create the topic")

    def _alter(self, changes: Mapping[str, ConfigChange]) -> None:
        wanted = {
            name: {**dict(change.set), **dict.fromkeys(change.delete)} for name, change in changes.items() if change
        }
        if wanted:
            self._demand(alter_configs(self._client, wanted, deadline=self._deadline()), "configure the topic")

    def _learn_ids(self, targets: Iterable[TargetTopic]) -> None:
        names = sorted(target.name for target in targets)

        def once(limit: Deadline) -> None:
            found = self._client.metadata(names, deadline=limit).topics
            for name in names:
                leaders = [] if name not in found else [each.leader for each in found[name].partitions.values()]
                if not leaders or None in leaders:
                    raise UnavailableError("the topic has no leaders yet", object_name=name)
                self.ids[name] = topic_id_text(found[name].topic_id)

        retry(once, deadline=self._deadline(), what="the topics to be led")

    def _is_empty(self, target: TargetTopic) -> bool:
        wanted = [TopicPartition(topic=target.name, partition=each) for each in range(target.partition_count)]
        found = _extents(self._client, wanted, self._patience_s)
        return all(extent.end == 0 for extent in found.values())

    def _demand(self, outcomes: Mapping[str, Outcome], what: str) -> None:
        for name, outcome in outcomes.items():
            if not outcome.done:
                raise RefusedError(
                    f"cannot {what}: {outcome.reason}",
                    operation="restore",
                    object_name=name,
                    hint="run the same command again when it is mended: it goes on from here",
                )

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)

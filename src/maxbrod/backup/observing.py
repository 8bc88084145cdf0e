"""Looks at the cluster and combines it with what the archive holds: the state of each partition at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from maxbrod.archive.selection import select_topics
from maxbrod.backup.notices import about
from maxbrod.backup.plan.starts import AtTime
from maxbrod.backup.plan.states import PartitionState
from maxbrod.backup.truncation import find_truncations
from maxbrod.errors import EXIT_INCOMPLETE, MaxbrodError, UsageError
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, list_offsets
from maxbrod.kafka.state.sizes import partition_sizes
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import PartitionId, TopicPartition, topic_id_text
from maxbrod.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from maxbrod.archive.opening import AnyCatalog
    from maxbrod.backup.options import BackupOptions
    from maxbrod.backup.plan.starts import Start
    from maxbrod.catalog.queries import ArchivedRange
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.metadata import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTopics:
    """The topics to back up."""

    topics: Mapping[str, Topic]
    present: frozenset[str]
    """The ids of all topics that the cluster has, chosen or not."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(ChosenTopics):
    """The partitions of the chosen topics as the cluster has them now."""

    states: tuple[PartitionState, ...]
    unanswered: Mapping[PartitionId, str] = field(default_factory=dict)
    """Chosen partitions whose leader did not report offsets, with the topic's name."""
    offsets_for_time: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The broker's answers if the backup starts at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offsets:
    """The leader's answers for one partition."""

    log_start: int
    stable: int
    high_watermark: int


def choose_topics(client: KafkaClient, request: BackupOptions, *, patience_s: float, demand: bool) -> ChosenTopics:
    """The requested topics. With `demand`, a named topic that does not exist is an error."""
    metadata = client.metadata(deadline=Deadline.after(patience_s))
    internal = {name: topic.internal for name, topic in metadata.topics.items()}
    chosen = select_topics(internal, request.topics, request.exclude, internal=request.internal)
    if chosen.missing and demand:
        raise UsageError(
            "there is no such topic",
            operation="plan a backup",
            object_name=", ".join(chosen.missing),
            hint="list the topics with kafka-topics --list; the user needs Describe on a topic to see it",
        )
    notices = [Notice(kind="missing", message="there is no such topic yet", topic=name) for name in chosen.missing]
    notices += [Notice(kind="missing", message=f"no topic matches {each} yet") for each in chosen.unmatched]
    for name in request.start if isinstance(request.start, dict) else ():
        if name not in chosen.chosen and name not in chosen.missing:
            message = "a start is set for this topic, but it is not backed up"
            notices.append(Notice(kind="missing", message=message, topic=name))
    return ChosenTopics(
        topics={name: metadata.topics[name] for name in chosen.chosen},
        present=frozenset(topic_id_text(topic.topic_id) for topic in metadata.topics.values()),
        notices=tuple(notices),
    )


def observe(
    client: KafkaClient,
    catalog: AnyCatalog,
    chosen: ChosenTopics,
    *,
    held: Mapping[PartitionId, ArchivedRange],
    compacted: Collection[str],
    start: Start,
    patience_s: float,
) -> Observed:
    """The state of every partition of the chosen topics. `compacted` has topic ids."""
    failed: dict[TopicPartition, MaxbrodError] = {}
    offsets = _read_offsets(client, chosen.topics, failed, patience_s)
    topics, recreated = _without_recreated(client, chosen.topics, patience_s)
    ids = {
        where: PartitionId(topic_id=topic_id_text(topics[where.topic].topic_id), partition=where.partition)
        for where in (*offsets, *failed)
        if where.topic in topics
    }
    sizes = partition_sizes(client, sorted(topics))
    states = {
        where: PartitionState(
            topic=where.topic,
            topic_id=ids[where].topic_id,
            partition=where.partition,
            log_start=each.log_start,
            end=each.stable,
            high_watermark=each.high_watermark,
            held=held.get(ids[where]),
            bytes_per_offset=_bytes_per_offset(sizes.get(where), each.high_watermark - each.log_start),
            compacted=ids[where].topic_id in compacted,
        )
        for where, each in offsets.items()
        if where in ids
    }
    cuts = find_truncations(client, catalog, states.values(), failed=failed, patience_s=patience_s)
    states |= {where: replace(states[where], truncated_at=offset) for where, offset in cuts.items()}
    offsets_for_time: dict[TopicPartition, int] = {}
    if isinstance(start, AtTime):
        new = {where: start.timestamp_ms for where, each in states.items() if each.held is None and where not in failed}
        answers = list_offsets(client, new, deadline=Deadline.after(patience_s), failed=failed)
        offsets_for_time = {where: each.offset for where, each in answers.items()}
    unanswered = (
        about(where, "failed", error.message, hint=error.hint, exit_code=EXIT_INCOMPLETE)
        for where, error in sorted(failed.items())
    )
    return Observed(
        topics=topics,
        present=chosen.present,
        states=tuple(state for where, state in states.items() if where not in failed),
        unanswered={ids[where]: where.topic for where in failed if where in ids},
        offsets_for_time=offsets_for_time,
        notices=(*chosen.notices, *recreated, *unanswered),
    )


def _read_offsets(
    client: KafkaClient, topics: Mapping[str, Topic], failed: dict[TopicPartition, MaxbrodError], patience_s: float
) -> dict[TopicPartition, _Offsets]:
    places = [
        TopicPartition(topic=name, partition=number) for name, topic in topics.items() for number in topic.partitions
    ]

    def offsets(moment: int, *, read_committed: bool = False) -> dict[TopicPartition, int]:
        rest = {where: moment for where in places if where not in failed}
        limit = Deadline.after(patience_s)
        answers = list_offsets(client, rest, read_committed=read_committed, deadline=limit, failed=failed)
        return {where: each.offset for where, each in answers.items()}

    # In this order, so that each offset lies before the next, however much is written meanwhile.
    starts, stable, high = offsets(EARLIEST), offsets(LATEST, read_committed=True), offsets(LATEST)
    return {
        where: _Offsets(log_start=min(starts[where], stable[where]), stable=stable[where], high_watermark=high[where])
        for where in high
    }


def _without_recreated(
    client: KafkaClient, topics: Mapping[str, Topic], patience_s: float
) -> tuple[dict[str, Topic], list[Notice]]:
    """Offsets were requested by name: they belong to the topic id only if that is the same before and after."""
    now = client.metadata(sorted(topics), deadline=Deadline.after(patience_s)).topics if topics else {}
    same = {name: topic for name, topic in topics.items() if name in now and now[name].topic_id == topic.topic_id}
    message = "the topic was deleted while the run was planned; the next run backs up the topic that exists then"
    return same, [Notice(kind="deleted", message=message, topic=name) for name in sorted(topics.keys() - same.keys())]


def _bytes_per_offset(size: int | None, offsets: int) -> float | None:
    return None if size is None or offsets <= 0 else size / offsets

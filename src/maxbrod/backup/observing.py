"""Looks at the cluster and at the archive, and brings both together: the state of each partition at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from maxbrod.archive.selection import select_topics
from maxbrod.backup.plan.starts import AtTime
from maxbrod.backup.plan.states import Held, PartitionState, diverges_at
from maxbrod.errors import EXIT_INCOMPLETE, MaxbrodError, UsageError
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, epoch_ends, list_offsets
from maxbrod.kafka.state.sizes import partition_sizes
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import PartitionId, TopicPartition, topic_id_text
from maxbrod.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from maxbrod.archive.opening import AnyCatalog
    from maxbrod.backup.options import BackupOptions
    from maxbrod.backup.plan.starts import Start
    from maxbrod.kafka.fetch.offsets import EpochEnd
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.metadata import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far the archive is with a partition, as the next run needs to know it."""

    first_offset: int
    end_offset: int
    last_leader_epoch: int | None


@dataclass(slots=True)
class Observation:
    """The chosen partitions, those that could not be asked, and what is to be said about it."""

    topics: dict[str, Topic]
    present: frozenset[str] = frozenset()
    """The ids of all topics that the cluster has, chosen or not."""
    states: list[PartitionState] = field(default_factory=list)
    unasked: dict[PartitionId, str] = field(default_factory=dict)
    """Chosen partitions whose offsets nobody would tell, and their topics' names."""
    offsets_for_time: dict[TopicPartition, int] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)


@dataclass(slots=True)
class _Asked:
    """What the leaders said of one partition."""

    log_start: int
    end: int
    high_watermark: int


def choose_topics(client: KafkaClient, request: BackupOptions, *, patience_s: float, demand: bool) -> Observation:
    """The topics that are meant. With `demand`, one that is named and does not exist is a mistake."""
    metadata = client.metadata(deadline=Deadline.after(patience_s))
    internal = {name: topic.internal for name, topic in metadata.topics.items()}
    chosen = select_topics(internal, request.topics, request.exclude, internal=request.internal)
    if chosen.missing and demand:
        raise UsageError(
            "there is no such topic",
            operation="plan a backup",
            object_name=", ".join(chosen.missing),
            hint="see the names with kafka-topics --list; the user needs Describe on a topic to see it",
        )
    notices = [Notice(kind="missing", message="there is no such topic yet", topic=name) for name in chosen.missing]
    notices += [Notice(kind="missing", message=f"no topic matches {each} yet") for each in chosen.unmatched]
    for name in request.start if isinstance(request.start, dict) else ():
        if name not in chosen.chosen and name not in chosen.missing:
            notices.append(Notice(kind="missing", message="a start is set for it, and it is not backed up", topic=name))
    return Observation(
        topics={name: metadata.topics[name] for name in chosen.chosen},
        present=frozenset(topic_id_text(topic.topic_id) for topic in metadata.topics.values()),
        notices=notices,
    )


def observe(
    client: KafkaClient,
    catalog: AnyCatalog,
    found: Observation,
    *,
    positions: Mapping[PartitionId, Position],
    compacted: Collection[str],
    start: Start,
    patience_s: float,
) -> None:
    """Fill in the states of all partitions of the chosen topics. `compacted` has topic ids."""
    wanted = [
        TopicPartition(topic=name, partition=number)
        for name, topic in found.topics.items()
        for number in topic.partitions
    ]
    failed: dict[TopicPartition, MaxbrodError] = {}
    asked = _ask(client, wanted, failed, patience_s)
    _leave_out_recreated(client, found, asked, patience_s)
    held = _find_held(client, catalog, found, asked, positions, failed, patience_s)
    sizes = partition_sizes(client, sorted(found.topics))
    for where, each in asked.items():
        if where in failed:
            continue
        offsets = each.high_watermark - each.log_start
        size = sizes.get(where)
        found.states.append(
            PartitionState(
                topic=where.topic,
                topic_id=topic_id_text(found.topics[where.topic].topic_id),
                partition=where.partition,
                log_start=each.log_start,
                end=each.end,
                high_watermark=each.high_watermark,
                held=held.get(where),
                bytes_per_offset=None if size is None or offsets <= 0 else size / offsets,
                compacted=topic_id_text(found.topics[where.topic].topic_id) in compacted,
            )
        )
    if isinstance(start, AtTime):
        new = {where: start.timestamp_ms for where in asked if where not in held and where not in failed}
        answers = list_offsets(client, new, deadline=Deadline.after(patience_s), failed=failed)
        found.offsets_for_time.update({where: each.offset for where, each in answers.items()})
        found.states[:] = [each for each in found.states if _where(each) not in failed]
    found.unasked.update({_id(found, where): where.topic for where in failed if where.topic in found.topics})
    found.notices.extend(_could_not_ask(where, error) for where, error in sorted(failed.items()))


def _id(found: Observation, where: TopicPartition) -> PartitionId:
    return PartitionId(topic_id=topic_id_text(found.topics[where.topic].topic_id), partition=where.partition)


def _where(state: PartitionState) -> TopicPartition:
    return TopicPartition(topic=state.topic, partition=state.partition)


def _ask(
    client: KafkaClient,
    wanted: Iterable[TopicPartition],
    failed: dict[TopicPartition, MaxbrodError],
    patience_s: float,
) -> dict[TopicPartition, _Asked]:
    def offsets(moment: int, *, read_committed: bool = False) -> dict[TopicPartition, int]:
        rest = {where: moment for where in wanted if where not in failed}
        limit = Deadline.after(patience_s)
        answers = list_offsets(client, rest, read_committed=read_committed, deadline=limit, failed=failed)
        return {where: each.offset for where, each in answers.items()}

    # In this order, so that each lies before the next however much is written meanwhile.
    starts, stable, high = offsets(EARLIEST), offsets(LATEST, read_committed=True), offsets(LATEST)
    return {where: _Asked(min(starts[where], stable[where]), stable[where], high[where]) for where in high}


def _leave_out_recreated(
    client: KafkaClient, found: Observation, asked: dict[TopicPartition, _Asked], patience_s: float
) -> None:
    """Offsets were asked by name: what they say is true of the topic id only if that is the same before and after."""
    now = client.metadata(sorted(found.topics), deadline=Deadline.after(patience_s)).topics if found.topics else {}
    for name, topic in sorted(found.topics.items()):
        if name not in now or now[name].topic_id != topic.topic_id:
            message = "the topic was deleted while the run was planned; the next run sees what is there then"
            found.notices.append(Notice(kind="deleted", message=message, topic=name))
            del found.topics[name]
    for where in [where for where in asked if where.topic not in found.topics]:
        del asked[where]


def _find_held(
    client: KafkaClient,
    catalog: AnyCatalog,
    found: Observation,
    asked: Mapping[TopicPartition, _Asked],
    positions: Mapping[PartitionId, Position],
    failed: dict[TopicPartition, MaxbrodError],
    patience_s: float,
) -> dict[TopicPartition, Held]:
    ids = {where: _id(found, where) for where in asked}
    known = {where: positions[each] for where, each in ids.items() if each in positions}
    epochs = {where: each.last_leader_epoch for where, each in known.items() if each.last_leader_epoch is not None}
    # Messages of the oldest formats carry no epoch: there is nothing to compare.
    asked_epochs = {where: epoch for where, epoch in epochs.items() if epoch >= 0}
    answers = epoch_ends(client, asked_epochs, deadline=Deadline.after(patience_s), failed=failed)
    return {
        where: Held(
            first_offset=each.first_offset,
            end_offset=each.end_offset,
            last_leader_epoch=each.last_leader_epoch,
            epoch_end_offset=_common_end(catalog, ids[where], epochs.get(where, -1), answers.get(where)),
        )
        for where, each in known.items()
    }


def _common_end(catalog: AnyCatalog, partition: PartitionId, asked_epoch: int, answer: EpochEnd | None) -> int | None:
    """Up to where log and archive are the same. Rows are looked at only where the broker knows no such epoch."""
    if answer is None:
        return None
    held_epochs = _epochs(catalog, partition) if answer.leader_epoch < asked_epoch else ()
    return diverges_at(held_epochs, asked_epoch=asked_epoch, answer=(answer.leader_epoch, answer.end_offset))


def _epochs(catalog: AnyCatalog, partition: PartitionId) -> list[tuple[int, int]]:
    rows = catalog.rows(
        topic_id=partition.topic_id, partition=partition.partition, columns=["base_offset", "last_leader_epoch"]
    )
    pairs = zip(rows["base_offset"].to_pylist(), rows["last_leader_epoch"].to_pylist(), strict=True)
    return [(base, epoch) for base, epoch in pairs if epoch is not None]


def _could_not_ask(where: TopicPartition, error: MaxbrodError) -> Notice:
    return Notice(
        kind="failed",
        message=error.message,
        topic=where.topic,
        partition=where.partition,
        hint=error.hint,
        exit_code=EXIT_INCOMPLETE,
    )

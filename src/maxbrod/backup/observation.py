"""The state of each partition at one moment: what the cluster has, combined with what the archive holds."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import TYPE_CHECKING, Final

from maxbrod.archive.selection import has_patterns, nearest, select_topics
from maxbrod.backup.plan.ranges import PartitionState
from maxbrod.backup.plan.starts import AtTime, Start
from maxbrod.backup.report import hidden_topic, hidden_topics, no_topics, too_few_topics
from maxbrod.backup.truncation import find_truncations
from maxbrod.errors import EXIT_INCOMPLETE, MaxbrodError, UsageError
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, LogBounds, LogBoundsReader, list_offsets
from maxbrod.kafka.state.cluster_state import ClusterState
from maxbrod.kafka.state.topics import partition_sizes, see_topics
from maxbrod.kafka.wire.client import KafkaClient, Topic
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import PartitionId, TopicPartition, topic_id_text
from maxbrod.notices import Notice
from maxbrod.work.report import about

if TYPE_CHECKING:
    from maxbrod.archive.archive import AnyCatalog
    from maxbrod.backup.options import BackupOptions
    from maxbrod.catalog.queries import ArchivedRange


_SIZES_S: Final = 60.0


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


class Observations:
    """Earlier observations of this process, so that the next one asks for less and builds less."""

    def __init__(self) -> None:
        self.bounds = LogBoundsReader()
        self._epochs: dict[PartitionId, int] = {}
        self._sizes: dict[PartitionId, float] = {}
        self._sizes_since = -math.inf
        self._last: tuple[tuple[object, ...], tuple[object, ...], Observed] | None = None

    def is_same_log(self, partition: PartitionId, leader_epoch: int) -> bool:
        """True if the log was compared with the archive at this leader epoch.

        A log is cut only when its leader changes, and then the leader epoch increases. While it stays the same, asking
        again would give the same answer.
        """
        return leader_epoch >= 0 and self._epochs.get(partition) == leader_epoch

    def add_logs(self, epochs: Mapping[PartitionId, int]) -> None:
        self._epochs.update(epochs)

    def sizes(
        self,
        client: KafkaClient,
        partitions: Mapping[TopicPartition, PartitionId],
        bounds: Mapping[TopicPartition, LogBounds],
    ) -> Mapping[PartitionId, float]:
        """The bytes of an offset of each of these partitions, as far as known: an estimate, which is kept for a minute.

        A broker tells the sizes of all its logs, and reads its folders to do so.
        """
        if time.monotonic() - self._sizes_since >= _SIZES_S:
            self._sizes, self._sizes_since = {}, time.monotonic()
        unknown = {where: each for where, each in partitions.items() if each not in self._sizes}
        found = partition_sizes(client, list(unknown)) or {}
        for where, partition in unknown.items():
            offsets = bounds[where].high_watermark - bounds[where].log_start
            if (size := found.get(where)) is not None and offsets > 0:
                self._sizes[partition] = size / offsets
        return self._sizes

    def like(self, same: Sequence[object], equal: Sequence[object]) -> Observed | None:
        """Return the last observation, if all that it depends on is the same, or equal: large values are the same."""
        if self._last is None:
            return None
        known_same, known_equal, observed = self._last
        unchanged = len(known_same) == len(same) and all(map(is_, known_same, same)) and known_equal == equal
        return observed if unchanged else None

    def remember(self, same: tuple[object, ...], equal: tuple[object, ...], observed: Observed) -> None:
        self._last = same, equal, observed

    def clear(self) -> None:
        self._epochs.clear()
        self._sizes.clear()
        self._last = None


def choose_topics(
    client: KafkaClient,
    request: BackupOptions,
    *,
    patience_s: float,
    demand: bool,
    cluster: ClusterState | None = None,
) -> ChosenTopics:
    """Return the requested topics. With `demand`, a named topic that does not exist is an error.

    `cluster` is the cluster as this user sees it: with it, notices say what may be hidden.
    """
    metadata = client.metadata(deadline=Deadline.after(patience_s))
    internal = {name: topic.internal for name, topic in metadata.topics.items()}
    chosen = select_topics(internal, request.topics, request.exclude, internal=request.internal)
    if chosen.missing and demand:
        raise UsageError(
            f"the cluster has no topic {', '.join(map(repr, chosen.missing))}, or this user may not see it",
            operation="plan a backup",
            hint=nearest(
                chosen.missing[0],
                internal,
                see="list the topics with kafka-topics --list; the user needs Describe on a topic to see it",
            ),
        )
    denied = see_topics(client, chosen.missing, deadline=Deadline.after(patience_s)).denied if chosen.missing else ()
    hidden = _hidden(cluster, denied, request)
    missing = [name for name in chosen.missing if name not in hidden]
    notices = [hidden_topic(name, exists=exists) for name, exists in sorted(hidden.items())]
    notices += [
        Notice(kind="missing", message=_asking("there is no such topic yet", name, internal), topic=name)
        for name in missing
    ]
    notices += [
        Notice(kind="missing", message=_asking(f"no topic matches {pattern} yet", pattern, internal))
        for pattern in chosen.unmatched
    ]
    for name in request.start if isinstance(request.start, dict) else ():
        if name not in chosen.chosen and name not in chosen.missing:
            message = "a start is set for this topic, but it is not backed up"
            notices.append(Notice(kind="missing", message=message, topic=name))
    enough, gap = request.min_topics, None if cluster is None else cluster.may_hide_topics
    if enough is not None and len(chosen.chosen) < enough:
        notices.append(too_few_topics(len(chosen.chosen), enough))
    elif gap is not None and has_patterns(request.topics):
        notices.append(hidden_topics(gap, enough=enough is not None))
    if not chosen.chosen and not notices:
        notices.append(no_topics(any_topic=bool(metadata.topics)))
    return ChosenTopics(
        topics={name: metadata.topics[name] for name in chosen.chosen},
        present=frozenset(topic_id_text(topic.topic_id) for topic in metadata.topics.values()),
        notices=tuple(notices),
    )


def _asking(message: str, word: str, known: Iterable[str]) -> str:
    """The message, and which topic may have been meant."""
    question = nearest(word, known, see="")
    return f"{message}; {question}" if question else message


def _hidden(cluster: ClusterState | None, denied: Iterable[str], request: BackupOptions) -> dict[str, bool]:
    """The requested topics that this user may not see, with whether they are known to exist.

    `denied` are named topics. If all topics of the cluster are known, one that is not among them does not exist.
    """
    known = () if cluster is None else cluster.hidden_topics
    chosen = select_topics(
        dict.fromkeys(known, False), request.topics, request.exclude, internal=request.internal
    ).chosen
    all_known = cluster is not None and cluster.may_hide_topics is None
    return {**({} if all_known else dict.fromkeys(denied, False)), **dict.fromkeys(chosen, True)}


def observe(
    client: KafkaClient,
    catalog: AnyCatalog,
    chosen: ChosenTopics,
    *,
    held: Mapping[PartitionId, ArchivedRange],
    compacted: Collection[str],
    start: Start,
    patience_s: float,
    earlier: Observations | None = None,
) -> Observed:
    """Return the state of every partition of the chosen topics. `compacted` has topic ids.

    What only partitions with news need is asked for those only: of a thousand partitions, few may have some. If nothing
    at all has changed, this returns the very same value as the last time.
    """
    earlier = Observations() if earlier is None else earlier
    failed: dict[TopicPartition, MaxbrodError] = {}
    offsets = _read_offsets(client, chosen.topics, failed, patience_s, earlier.bounds)
    topics, recreated = _without_recreated(client, chosen.topics, patience_s)
    same = (offsets, held, start, *topics.values())
    equal = (tuple(topics), frozenset(compacted), chosen.present, chosen.notices)
    last = earlier.like(same, equal)
    if last is not None:
        return last
    topic_ids = {name: topic_id_text(topic.topic_id) for name, topic in topics.items()}
    states = _states(client, offsets, topic_ids, held, compacted, earlier)
    # A log whose leader has changed may have been cut: it is compared with the archive.
    suspects = [state for where, state in states.items() if not earlier.is_same_log(state.id, _epoch(topics, where))]
    cuts = find_truncations(client, catalog, suspects, failed=failed, patience_s=patience_s)
    earlier.add_logs({s.id: _epoch(topics, s.where) for s in suspects if s.where not in cuts and s.where not in failed})
    states |= {where: replace(states[where], truncated_at=offset) for where, offset in cuts.items()}
    offsets_for_time = _offsets_at(client, start, states, failed, patience_s)
    unanswered = (
        about(where, "failed", error.message, hint=error.hint, exit_code=EXIT_INCOMPLETE)
        for where, error in sorted(failed.items())
    )
    observed = Observed(
        topics=topics,
        present=chosen.present,
        states=tuple(state for where, state in states.items() if not failed or where not in failed),
        unanswered={found: where.topic for where in failed if (found := _id_of(where, topic_ids)) is not None},
        offsets_for_time=offsets_for_time,
        notices=(*chosen.notices, *recreated, *unanswered),
    )
    # What failed, or was compared just now, is to be looked at again.
    if not suspects and not failed:
        earlier.remember(same, equal, observed)
    return observed


def _states(
    client: KafkaClient,
    offsets: Mapping[TopicPartition, LogBounds],
    topic_ids: Mapping[str, str],
    held: Mapping[PartitionId, ArchivedRange],
    compacted: Collection[str],
    earlier: Observations,
) -> dict[TopicPartition, PartitionState]:
    # Each partition is hashed few times: an interval over a thousand of them is to cost next to nothing.
    found = [
        (where, partition, bounds, held.get(partition))
        for where, bounds in offsets.items()
        if (partition := _id_of(where, topic_ids)) is not None
    ]
    # Only partitions with something to read need an estimate of their size.
    news = {where: each for where, each, bounds, known in found if known is None or known.end_offset < bounds.stable}
    sizes = earlier.sizes(client, news, offsets) if news else {}
    return {
        where: PartitionState(
            topic=where.topic,
            topic_id=partition.topic_id,
            partition=where.partition,
            log_start=bounds.log_start,
            end=bounds.stable,
            high_watermark=bounds.high_watermark,
            held=known,
            bytes_per_offset=sizes.get(partition) if sizes else None,
            compacted=partition.topic_id in compacted,
        )
        for where, partition, bounds, known in found
    }


def _offsets_at(
    client: KafkaClient,
    start: Start,
    states: Mapping[TopicPartition, PartitionState],
    failed: dict[TopicPartition, MaxbrodError],
    patience_s: float,
) -> dict[TopicPartition, int]:
    """The offsets of new partitions at the time at which the backup starts, if it starts at one."""
    if not isinstance(start, AtTime):
        return {}
    new = {where: start.timestamp_ms for where, state in states.items() if state.held is None and where not in failed}
    answers = list_offsets(client, new, deadline=Deadline.after(patience_s), failed=failed)
    return {where: answer.offset for where, answer in answers.items()}


def _read_offsets(
    client: KafkaClient,
    topics: Mapping[str, Topic],
    failed: dict[TopicPartition, MaxbrodError],
    patience_s: float,
    reader: LogBoundsReader,
) -> Mapping[TopicPartition, LogBounds]:
    found = reader.read(client, topics.values(), deadline=Deadline.after(client.request_timeout_s))
    if len(found) == sum(len(topic.partitions) for topic in topics.values()):
        return found
    places = (
        TopicPartition(topic=name, partition=number) for name, topic in topics.items() for number in topic.partitions
    )
    rest = [where for where in places if where not in found]

    def offsets(moment: int, *, read_committed: bool = False) -> dict[TopicPartition, int]:
        wanted = {where: moment for where in rest if where not in failed}
        limit = Deadline.after(patience_s)
        answers = list_offsets(client, wanted, read_committed=read_committed, deadline=limit, failed=failed)
        return {where: listed.offset for where, listed in answers.items()}

    # In this order, so that each offset lies before the next, however much is written meanwhile.
    starts, stable, high = offsets(EARLIEST), offsets(LATEST, read_committed=True), offsets(LATEST)
    return {**found} | {
        where: LogBounds(min(starts[where], stable[where]), stable[where], high[where]) for where in high
    }


def _without_recreated(
    client: KafkaClient, topics: Mapping[str, Topic], patience_s: float
) -> tuple[dict[str, Topic], list[Notice]]:
    """Offsets were requested by name: they belong to the topic id only if that is the same before and after."""
    now = client.metadata(sorted(topics), deadline=Deadline.after(patience_s)).topics if topics else {}
    # As they are now: an epoch that is newer than the offsets is compared once more, an older one would not be.
    same = {name: now[name] for name, topic in topics.items() if name in now and now[name].topic_id == topic.topic_id}
    message = "the topic was deleted while the run was planned; the next run backs up the topic that exists then"
    return same, [Notice(kind="deleted", message=message, topic=name) for name in sorted(topics.keys() - same.keys())]


def _id_of(where: TopicPartition, topic_ids: Mapping[str, str]) -> PartitionId | None:
    """None if the topic was deleted meanwhile."""
    topic_id = topic_ids.get(where.topic)
    return None if topic_id is None else PartitionId(topic_id=topic_id, partition=where.partition)


def _epoch(topics: Mapping[str, Topic], where: TopicPartition) -> int:
    found = topics[where.topic].partitions.get(where.partition)
    return -1 if found is None else found.leader_epoch

"""Live topics as a side of a comparison: their names, and the offsets of their committed records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from maxbrod.archive.renames import unused_rule
from maxbrod.archive.selection import matches_nothing, select_topics
from maxbrod.compare.plan import ComparedRange, CompareRequest, Match, Pair, Times, split_evenly
from maxbrod.errors import UsageError
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, LogBounds, list_offsets
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.state.cluster_state import ClusterState
from maxbrod.kafka.wire.client import KafkaClient, Topic
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition, topic_id_text


class LiveCluster:
    """The topics of one cluster at the moment of the request."""

    def __init__(self, client: KafkaClient, *, patience_s: float) -> None:
        self._client = client
        self._patience_s = patience_s
        found = client.metadata(deadline=Deadline.after(patience_s))
        self.cluster_id = found.cluster_id or ""
        self.topics = found.topics
        self._logs: dict[TopicPartition, LogBounds] = {}

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def look(self, names: Iterable[str]) -> None:
        """Fetch the offsets of these topics, all at once. Records written later are not compared."""
        partitions = [
            TopicPartition(topic=name, partition=number)
            for name in sorted(set(names))
            if name in self.topics
            for number in self.topics[name].partitions
        ]
        deadline = Deadline.after(self._patience_s)
        first = list_offsets(self._client, dict.fromkeys(partitions, EARLIEST), deadline=deadline)
        end = list_offsets(self._client, dict.fromkeys(partitions, LATEST), deadline=deadline)
        stable = list_offsets(self._client, dict.fromkeys(partitions, LATEST), read_committed=True, deadline=deadline)
        for where in partitions:
            self._logs[where] = LogBounds(first[where].offset, stable[where].offset, end[where].offset)

    def log(self, name: str, partition: int) -> LogBounds | None:
        """The offsets of a partition; None if it does not exist. Transactions from `stable` on are still open."""
        return self._logs.get(TopicPartition(topic=name, partition=partition))

    def extent(self, name: str, partition: int, first: int, end: int) -> ComparedRange | None:
        """The part of [first, end) that the log can hold; retention may have deleted its beginning."""
        log = self.log(name, partition)
        if log is None:
            return None
        whole = ComparedRange(
            topic=name, topic_id=self.id_of(name), partition=partition, first=first, end=max(first, end)
        )
        return whole.clipped(first, log.stable)

    def whole(self, name: str, partition: int) -> ComparedRange | None:
        """All committed records of a partition, as far as `look` has seen."""
        log = self.log(name, partition)
        return None if log is None else self.extent(name, partition, log.log_start, log.stable)

    def state(self, names: Iterable[str]) -> ClusterState:
        """The topics with their configuration."""
        return capture(self._client, sorted(set(names)), (), deadline=Deadline.after(self._patience_s))

    def id_of(self, name: str) -> str:
        return topic_id_text(self.topics[name].topic_id)

    def notes(self, name: str, partition: int, *, first: int | None = None, end: int | None = None) -> tuple[str, ...]:
        """Notes about a log for a reader of the verdict. `first`, `end`: the compared offsets, if not all."""
        log = self.log(name, partition)
        if log is None:
            return (f"there is no {TopicPartition(topic=name, partition=partition)} at the target",)
        notes = []
        if log.stable < log.high_watermark:
            left = log.high_watermark - log.stable
            notes.append(f"a transaction is not decided: {left} offsets from {log.stable} on are not compared")
        if first is not None and log.log_start < first:
            notes.append(f"the target begins earlier: {first - log.log_start} offsets before {first} are not compared")
        if end is not None and log.stable > end:
            notes.append(f"the target has more: {log.stable - end} offsets from {end} on are not compared")
        return tuple(notes)


def pair_live(source: LiveCluster, target: LiveCluster, request: CompareRequest) -> list[Pair]:
    """Pair topics of one cluster with those of another, or with other topics of the same cluster."""
    selection = request.selection
    if selection.as_of or selection.topic_ids or request.restore:
        raise UsageError(
            "a cluster has neither runs nor restores", hint="--as-of, --topic-id and --restore are for an archive"
        )
    names = select_topics(
        {name: topic.internal for name, topic in source.topics.items()}, selection.topics, selection.exclude
    )
    if names.wrong is not None:
        raise matches_nothing(names.wrong, source.topics, whose="the source")
    if not names.chosen:
        raise UsageError("the source has none of the selected topics")
    for rule in selection.rename.unused(names.chosen):
        raise unused_rule(rule, names.chosen)
    into = {name: selection.rename.apply(name) for name in names.chosen}
    source.look(into)
    target.look(into.values())
    return [pair for name, other in into.items() for pair in _pair_topic(source, target, request, name, other)]


def _pair_topic(
    source: LiveCluster, target: LiveCluster, request: CompareRequest, name: str, other: str
) -> Iterator[Pair]:
    if target.topic(other) is not None and source.id_of(name) == target.id_of(other):
        raise UsageError(
            "a topic cannot be compared with itself", object_name=name, hint="name the other topic with --rename"
        )
    selection, there = request.selection, target.topic(other)
    match = choose_match(
        request, name, len(source.topics[name].partitions), None if there is None else len(there.partitions)
    )
    times = Times(since_ms=selection.since_ms, until_ms=selection.until_ms, cut_target=True)
    for number in sorted(source.topics[name].partitions):
        mine, its = source.log(name, number), target.log(other, number)
        if mine is None or not selection.selects(name, number):
            continue
        first, end = mine.log_start, mine.stable
        if match is Match.EXACT and its is not None:
            first, end = min(first, its.log_start), max(end, its.stable)
        named_first, named_end = selection.range_of(name, number)
        first = max(named_first or 0, first)
        end = max(first, end if named_end is None else min(named_end, end))
        begin, stop = (first, end) if match is Match.EXACT or its is None else (its.log_start, its.stable)
        extent = source.extent(name, number, first, end)
        yield Pair(
            source_topic=name,
            target_topic=other,
            partition=number,
            match=match,
            source=extent,
            target=None if match is Match.SET else target.extent(other, number, begin, stop),
            splits=split_evenly(first, end),
            notes=target.notes(other, number) if match is not Match.SET else (),
            log_starts=(mine.log_start, its.log_start)
            if match is Match.EXACT and its is not None and not request.cuts
            else None,
            times=times,
        )
    if match is Match.SET:
        yield from whole_target(target, name, other, times)


def whole_target(
    target: LiveCluster, name: str, other: str, times: Times, *, first: Mapping[int, int] | None = None
) -> Iterator[Pair]:
    """Every partition of a topic that is compared as a set, from the offset that `first` gives on, if any."""
    found = target.topic(other)
    for number in [] if found is None else sorted(found.partitions):
        log = target.log(other, number)
        if log is not None:
            yield Pair(
                source_topic=name,
                target_topic=other,
                partition=number,
                match=Match.SET,
                source=None,
                target=target.extent(other, number, max(log.log_start, (first or {}).get(number, 0)), log.stable),
                notes=target.notes(other, number),
                times=times,
            )


def choose_match(request: CompareRequest, name: str, mine: int, its: int | None) -> Match:
    """By offset, unless the request or the numbers of partitions call for something else.

    UsageError: the requested match is impossible.
    """
    chosen = bool(request.selection.partitions or request.selection.ranges)
    if request.match is Match.SET or its is None or mine == its or chosen:
        return Match.EXACT if request.match is Match.AUTO else request.match
    if request.match is Match.AUTO:
        return Match.SET
    raise UsageError(
        f"the topic has {mine} partitions, its counterpart {its}",
        operation="compare",
        object_name=name,
        hint="compare them as sets (--offsets set), or name partitions (--partition)",
    )

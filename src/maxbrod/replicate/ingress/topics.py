"""Destination topics: created as the source's are, grown, configured, begun at the source's log start.

A topic that somebody else made is left alone, unless it is empty: only what the link's own producer has written is
appended to. Topics that are shared with others are only created and grown.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError, RefusedError, UnavailableError
from maxbrod.kafka.admin.topics import NewTopic, alter_configs, create_partitions, create_topics, delete_records
from maxbrod.kafka.produce.producer_ids import read_tail
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.model import PartitionId, TopicPartition, topic_id_of, topic_id_text
from maxbrod.replicate.ingress.plan import Extent, Mirror, plan_mirror_configs, plan_shared_configs, why_other_source
from maxbrod.replicate.link import Link, LinkMark, State
from maxbrod.restore.plan.targets import CLEANUP_POLICY, MESSAGE_BYTES_DEFAULT, LogExtent
from maxbrod.restore.target import StartToFill, fill_starts, log_extents

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from maxbrod.kafka.admin.outcomes import Outcome
    from maxbrod.kafka.wire.metadata import Topic
    from maxbrod.replicate.view import MirroredPartition

_OPERATION: Final = "replicate"
_LEADER_PATIENCE_S: Final = 10.0
"""The time to wait for the leaders of topics that are seen for the first time: they may be new."""
NOBODY: Final = -1
NO_LEADER: Final = "the destination's partition has no leader now"


class MirrorTopics:
    """The destination's topics, as far as they are known to be mirrors of this link."""

    def __init__(
        self,
        client: KafkaClient,
        link: Link,
        overrides: Mapping[str, str],
        *,
        patience_s: float,
        shared: bool = False,
    ) -> None:
        """`shared`: others may write to the topics. Then they keep their configuration and all their records."""
        self._client, self._link, self._overrides, self._patience_s = client, link, overrides, patience_s
        self._shared = shared
        self.ids: dict[str, str] = {}
        """The ids of destination topics, by name."""
        self.extents: dict[TopicPartition, LogExtent] = {}
        """The extents of logs when they were last asked for, or as they are known to end since."""
        self._configured: dict[str, str] = {}
        """The digest of the configuration that each topic has got from this process."""
        self._ours: set[str] = set()
        self.refused: dict[TopicPartition, MaxbrodError] = {}
        """Partitions that are not the link's, in topics whose other ones are."""
        self.batch_bytes: dict[str, int] = {}
        """The largest batch that each shared topic accepts."""

    def prepare(
        self,
        mirrors: Sequence[Mirror],
        extents: Mapping[PartitionId, Extent],
        marks: dict[TopicPartition, LinkMark],
        adopted: Collection[str] = (),
        *,
        lead: bool = True,
    ) -> dict[str, MaxbrodError]:
        """Make every destination topic ready to be appended to. Returns why some are not, by name.

        `marks` of another source topic are removed where the mirror has no records of it. An instance that does not
        `lead` changes nothing: another one has made the topics ready.
        """
        wanted = {each.name: each for each in mirrors if not each.gone}
        failed: dict[str, MaxbrodError] = {}
        present = self._present(wanted)
        if not lead:
            return self._follow(wanted, present, marks, adopted)
        self._create([each for name, each in wanted.items() if name not in present], extents, failed)
        self._grow({name: each for name, each in wanted.items() if name in present}, present, failed)
        self._learn([name for name in wanted if name not in failed])
        if self._shared:
            self._look_at_limits([name for name in wanted if name not in failed])
            return failed
        for name, mirror in wanted.items():
            if name not in failed:
                try:
                    self._begin(mirror, extents, marks, adopted=name in adopted)
                except MaxbrodError as error:
                    failed[name] = error
        self._configure([each for name, each in wanted.items() if name not in failed], failed)
        return failed

    def _follow(
        self,
        wanted: Mapping[str, Mirror],
        present: Mapping[str, Topic],
        marks: dict[TopicPartition, LinkMark],
        adopted: Collection[str],
    ) -> dict[str, MaxbrodError]:
        failed: dict[str, MaxbrodError] = {name: _missing(name) for name in wanted if name not in present}
        there = {name: each for name, each in wanted.items() if name in present}
        self._learn(list(there))
        if self._shared:
            self._look_at_limits(list(there))
            return failed
        wanted_there = [where for each in there.values() for where in _partitions_of(each)]
        grown = [where for where in wanted_there if where.partition in present[where.topic].partitions]
        self.ends(self.led(where for where in grown if where not in self.extents))
        for name, mirror in there.items():
            try:
                self._refuse_other(mirror, marks, adopted=name in adopted)
            except MaxbrodError as error:
                failed[name] = error
        return failed

    def _refuse_other(self, mirror: Mirror, marks: dict[TopicPartition, LinkMark], *, adopted: bool) -> None:
        """Refuse a mirror of a source topic that was deleted since, whatever its successor has. At every interval.

        Without records it becomes the mirror of the new one.
        """
        topic_id = mirror.source.topic_id
        others = [each for each in _partitions_of(mirror) if each in marks and marks[each].topic_id != topic_id]
        others = [other for other in others if other in self.extents]
        if not others or adopted:
            return
        self.ends(self.led(others))  # another instance may have appended to them
        for where in others:
            partition = PartitionId(topic_id=topic_id, partition=where.partition)
            if (why := why_other_source(marks[where], partition, self.extents[where].end)) is not None:
                raise RefusedError(
                    why,
                    operation=_OPERATION,
                    object_name=mirror.name,
                    hint="delete the destination topic, which is then mirrored anew, or mirror to another name with "
                    "--rename",
                )
        for where in others:
            del marks[where]

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The brokers that lead these partitions; NOBODY: none does now."""
        wanted = list(partitions)
        found = self._client.metadata(sorted({each.topic for each in wanted}), deadline=self._deadline()).topics
        known = {where: found[where.topic].partitions.get(where.partition) for where in wanted if where.topic in found}
        return {
            where: NOBODY if each.leader is None else each.leader for where, each in known.items() if each is not None
        }

    def led(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that have a leader now. Nobody waits for the others: they must not stop the rest."""
        wanted = list(partitions)
        leaders = self.leaders(wanted) if wanted else {}
        # A partition that was just added may not be known to every broker: whoever asks it waits a little.
        return [where for where in wanted if leaders.get(where) != NOBODY]

    def ends(self, partitions: Collection[TopicPartition]) -> None:
        """Ask where these logs begin and end."""
        if partitions:
            self.extents |= log_extents(self._client, sorted(partitions), self._patience_s)

    def move_starts(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, MaxbrodError]:
        """Delete the records that the source has deleted: the log starts follow."""
        behind = {
            where: min(start, self.extents[where].end)
            for where, start in starts.items()
            if where in self.extents and self.extents[where].start < min(start, self.extents[where].end)
        }
        if not behind:
            return {}
        moved, failed = delete_records(self._client, behind, deadline=self._deadline())
        for where, start in moved.items():
            self.extents[where] = LogExtent(start=start, end=self.extents[where].end)
        return failed

    def reached(self, where: TopicPartition, end: int) -> None:
        """The log of this partition is known to end here."""
        self.extents[where] = LogExtent(start=self.extents[where].start, end=end)

    # Topics

    def _present(self, names: Collection[str]) -> Mapping[str, Topic]:
        known = [name for name in names if name not in self.ids]
        found = self._client.metadata(sorted(names), deadline=self._deadline()).topics
        for name in names:
            if name not in known and (name not in found or topic_id_text(found[name].topic_id) != self.ids[name]):
                self._forget(name)
        return found

    def _forget(self, name: str) -> None:
        """The topic was deleted at the destination: whatever has its name now is another one."""
        self.ids.pop(name, None)
        self._configured.pop(name, None)
        self.batch_bytes.pop(name, None)
        self._ours.discard(name)
        self.extents = {where: each for where, each in self.extents.items() if where.topic != name}
        self.refused = {where: each for where, each in self.refused.items() if where.topic != name}

    def _create(
        self, mirrors: Iterable[Mirror], extents: Mapping[PartitionId, Extent], failed: dict[str, MaxbrodError]
    ) -> None:
        new = []
        brokers = len(self._client.metadata([], deadline=self._deadline()).brokers)
        for mirror in mirrors:
            factor = min(mirror.source.replication_factor or 1, brokers)
            if self._shared:
                configs = plan_shared_configs(mirror.source, self._overrides, replication_factor=factor)
                count = mirror.source.partition_count
                new.append(NewTopic(name=mirror.name, partitions=count, replication_factor=factor, configs=configs))
                continue
            configs = dict(plan_mirror_configs(mirror.source, self._overrides, replication_factor=factor).linked)
            if any(each.start for each in _of_topic(mirror, extents)):
                configs[CLEANUP_POLICY] = "delete"  # a compacted topic refuses fillers; `_configure` compacts it again
            count = mirror.source.partition_count
            new.append(NewTopic(name=mirror.name, partitions=count, replication_factor=factor, configs=configs))
        if new:
            outcomes = create_topics(self._client, new, deadline=self._deadline())
            failed |= _failures(outcomes, "create the topic")
            self._ours |= {each.name for each in new if each.name not in failed}

    def _grow(
        self, mirrors: Mapping[str, Mirror], present: Mapping[str, Topic], failed: dict[str, MaxbrodError]
    ) -> None:
        counts = {
            name: each.source.partition_count
            for name, each in mirrors.items()
            if each.source.partition_count > len(present[name].partitions)
        }
        if counts:
            failed |= _failures(create_partitions(self._client, counts, deadline=self._deadline()), "add partitions")
        for name, each in mirrors.items():
            if not self._shared and len(present[name].partitions) > each.source.partition_count:
                failed[name] = RefusedError(
                    f"the destination topic has {len(present[name].partitions)} partitions, more than the source's "
                    f"{each.source.partition_count}",
                    operation=_OPERATION,
                    object_name=name,
                    hint="delete the destination topic, or mirror to another name with --rename",
                )

    def _learn(self, names: Sequence[str]) -> None:
        def once(limit: Deadline) -> None:
            found = self._client.metadata(sorted(names), deadline=limit).topics
            leaders = {
                name: [partition.leader for partition in found[name].partitions.values()]
                for name in names
                if name in found
            }
            self.ids |= {name: topic_id_text(found[name].topic_id) for name, each in leaders.items() if each}
            for name in names:
                if not leaders.get(name) or None in leaders[name]:
                    raise UnavailableError("the topic has no leaders yet", object_name=name)

        if any(name not in self.ids for name in names):
            try:
                retry(once, deadline=self._deadline().within(_LEADER_PATIENCE_S), what="leaders of the topics")
            except UnavailableError:
                if any(name not in self.ids for name in names):
                    raise

    # The beginning of logs

    def _begin(
        self,
        mirror: Mirror,
        extents: Mapping[PartitionId, Extent],
        marks: dict[TopicPartition, LinkMark],
        *,
        adopted: bool,
    ) -> None:
        """Prove that the topic is ours, and move logs without records to the source's log start.

        An adopted topic has records of others. Whether they are the source's is seen when it is appended to.
        """
        fresh = self.led(each for each in _partitions_of(mirror) if each not in self.extents)
        self.ends(fresh)
        self._refuse_other(mirror, marks, adopted=adopted)
        try:
            self._fill_starts(fresh, mirror, extents, marks, adopted=adopted)
        except MaxbrodError:
            # They are looked at again, as if for the first time.
            self.extents = {where: each for where, each in self.extents.items() if where not in fresh}
            raise
        self._ours.add(mirror.name)

    def _fill_starts(
        self,
        fresh: Iterable[TopicPartition],
        mirror: Mirror,
        extents: Mapping[PartitionId, Extent],
        marks: Mapping[TopicPartition, LinkMark],
        *,
        adopted: bool,
    ) -> None:
        to_fill = []
        for where in fresh:
            extent = extents.get(PartitionId(topic_id=mirror.source.topic_id, partition=where.partition))
            mark, end = marks.get(where), self.extents[where].end
            start = 0 if extent is None else extent.start
            try:
                begins = not end or (mark is None and not adopted and self._is_filled(where, end) and end <= start)
            except RefusedError as error:
                if not any(each in marks for each in _partitions_of(mirror)):
                    raise  # a topic that never was a mirror is not touched at all
                self.refused[where] = error
                continue
            if begins and start:
                to_fill.append(self._fill(where, start))
        if to_fill:
            fill_starts(self._client, to_fill, filler_id(self._link), patience_s=self._patience_s)
            self.ends([each.where for each in to_fill])

    def _fill(self, where: TopicPartition, start: int) -> StartToFill:
        return StartToFill(where=where, topic_id=self.ids[where.topic], base=0, first=start)

    def _is_filled(self, where: TopicPartition, end: int) -> bool:
        """True if the log ends with our fillers. RefusedError: with another producer's records."""
        tail = read_tail(self._client, where, end, topic_id=topic_id_of(self.ids[where.topic]))
        if tail is None or tail.control or tail.producer_id == self._link.producer_id:
            return False
        if tail.producer_id == filler_id(self._link):
            return True
        raise RefusedError(
            "the destination topic has records that this link has not written",
            operation=_OPERATION,
            object_name=str(where),
            offset=end - 1,
            hint="mirror to another name with --rename or --prefix, or delete the destination topic",
        )

    # Configuration

    def _look_at_limits(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self.batch_bytes]
        if unknown:
            present = capture(self._client, unknown, (), deadline=self._deadline())
            for name in unknown:
                topic = present.topic(name)
                limit = None if topic is None else (topic.effective or {}).get("max.message.bytes")
                self.batch_bytes[name] = MESSAGE_BYTES_DEFAULT if limit is None else int(limit)

    def _configure(self, mirrors: Iterable[Mirror], failed: dict[str, MaxbrodError]) -> None:
        """Configure topics whose source has another configuration than when this process last looked."""
        wanted = {}
        for mirror in mirrors:
            configs = plan_mirror_configs(
                mirror.source, self._overrides, replication_factor=mirror.source.replication_factor
            ).linked
            digest = hashlib.blake2b(repr(sorted(configs.items())).encode(), digest_size=16).hexdigest()
            if self._configured.get(mirror.name) != digest:
                wanted[mirror.name] = (configs, digest)
        if not wanted:
            return
        present = capture(self._client, list(wanted), (), deadline=self._deadline())
        changes: dict[str, dict[str, str | None]] = {}
        for name, (configs, _) in wanted.items():
            topic = present.topic(name)
            if topic is None or topic.configs is None:
                continue
            final = {**configs, **_capped(configs, topic.replication_factor)}
            change: dict[str, str | None] = {
                key: value for key, value in final.items() if topic.configs.get(key) != value
            }
            change |= dict.fromkeys(topic.configs.keys() - final.keys())
            if change:
                changes[name] = change
        if changes:
            failed |= _failures(alter_configs(self._client, changes, deadline=self._deadline()), "configure the topic")
        self._configured |= {name: digest for name, (_, digest) in wanted.items() if name not in failed}

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)


def tell_unled(partitions: Sequence[MirroredPartition], topics: MirrorTopics) -> list[MirroredPartition]:
    """The partitions that have a leader. The others wait, and say so."""
    led = set(topics.led(partition.where for partition in partitions))
    for partition in partitions:
        if partition.where not in led and partition.state is State.IN_STEP:
            partition.state, partition.why = State.CATCHING_UP, NO_LEADER
    return [partition for partition in partitions if partition.where in led]


def filler_id(link: Link) -> int:
    """The producer id of fillers. The lowest bit tells it from the link's own."""
    return link.producer_id ^ 1


def _capped(configs: Mapping[str, str], replication_factor: int) -> dict[str, str]:
    """More in-sync replicas than there are replicas would refuse every batch."""
    asked = configs.get("min.insync.replicas", "1")
    return {"min.insync.replicas": str(replication_factor)} if int(asked) > replication_factor > 0 else {}


def _of_topic(mirror: Mirror, extents: Mapping[PartitionId, Extent]) -> list[Extent]:
    ids = (
        PartitionId(topic_id=mirror.source.topic_id, partition=each) for each in range(mirror.source.partition_count)
    )
    return [extents[each] for each in ids if each in extents]


def _partitions_of(mirror: Mirror) -> list[TopicPartition]:
    """The partitions that a mirror has, or is to have."""
    return [TopicPartition(topic=mirror.name, partition=number) for number in range(mirror.source.partition_count)]


def _missing(name: str) -> UnavailableError:
    return UnavailableError(
        "the destination topic does not exist yet; another instance creates it",
        operation=_OPERATION,
        object_name=name,
    )


def _failures(outcomes: Mapping[str, Outcome], what: str) -> dict[str, MaxbrodError]:
    failures: dict[str, MaxbrodError] = {}
    for name, each in outcomes.items():
        if each.code == Code.TOPIC_ALREADY_EXISTS:
            # Since this interval looked: the next one looks again, and judges what is there.
            why = "another process has just created the topic"
            failures[name] = UnavailableError(why, operation=_OPERATION, object_name=name)
        elif not each.done:
            failures[name] = RefusedError(f"cannot {what}: {each.reason}", operation=_OPERATION, object_name=name)
    return failures

"""Destination topics: created as the source's are, grown, configured, begun at the source's log start.

A topic that somebody else made is left alone, unless it is empty: only what the link's own producer has written is
appended to. Topics that are shared with others are only created and grown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError, RefusedError, UnavailableError
from maxbrod.kafka.admin import (
    ChangeOutcome,
    NewTopic,
    alter_configs,
    create_partitions,
    create_topics,
    delete_records,
)
from maxbrod.kafka.produce.producer_ids import read_tail
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.wire.client import Topic, retry
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.model import PartitionId, TopicPartition, topic_id_of, topic_id_text
from maxbrod.replicate.ingress.plan import Extent, Mirror, plan_mirror_configs, plan_shared_configs, why_other_source
from maxbrod.replicate.link import Link, LinkMark, PositionKey, State
from maxbrod.restore.plan.targets import CLEANUP_POLICY, MESSAGE_BYTES_DEFAULT, LogExtent
from maxbrod.restore.target import StartToFill, fill_starts, log_extents

if TYPE_CHECKING:
    from maxbrod.replicate.view import LinkView, MirroredPartition

_OPERATION: Final = "replicate"
_LEADER_PATIENCE_S: Final = 10.0
"""The time to wait for the leaders of topics that are seen for the first time: they may be new."""
NOBODY: Final = -1
NO_LEADER: Final = "the destination's partition has no leader now"


class MirrorTopics:
    """The destination's topics, as far as they are known to be mirrors of this link."""

    def __init__(self, view: LinkView, *, shared: bool = False) -> None:
        """`shared`: others may write to the topics. Then they keep their configuration and all their records."""
        self._client, self._link, self._deadline = view.client, view.link(), view.deadline
        self._overrides, self._patience_s = view.config.replicate.configs, view.config.patience
        self._shared = shared
        self.ids: dict[str, str] = {}
        self.extents: dict[TopicPartition, LogExtent] = {}
        """The extents of logs when they were last asked for, or as they are known to end since."""
        self._configured: dict[str, str] = {}
        """The digest of the configuration that each topic has got from this process."""
        self.refused: dict[TopicPartition, MaxbrodError] = {}
        """Partitions that are not the link's, in topics whose other ones are."""
        self.batch_bytes: dict[str, int] = {}
        """The largest batch that each shared topic accepts."""

    def prepare(
        self,
        mirrors: Sequence[Mirror],
        extents: Mapping[PartitionId, Extent],
        marks: dict[PositionKey, LinkMark],
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
        if lead:
            self._create([each for name, each in wanted.items() if name not in present], extents, failed)
            self._grow({name: each for name, each in wanted.items() if name in present}, present, failed)
        else:
            why = "the destination topic does not exist yet; another instance creates it"
            for name in wanted.keys() - present.keys():
                failed[name] = UnavailableError(why, operation=_OPERATION, object_name=name)
        ready = {name: each for name, each in wanted.items() if name not in failed}
        self._learn(list(ready))
        if self._shared:
            self._look_at_limits(list(ready))
            return failed
        if not lead:
            there = [where for each in ready.values() for where in _partitions_of(each)]
            there = [where for where in there if where.partition in present[where.topic].partitions]
            self.ends(self.led(where for where in there if where not in self.extents))
        for name, mirror in ready.items():
            try:
                if lead:
                    self._begin(mirror, extents, marks, adopted=name in adopted)
                else:
                    self._refuse_other(mirror, marks, adopted=name in adopted)
            except MaxbrodError as error:
                failed[name] = error
        if lead:
            self._configure([each for name, each in ready.items() if name not in failed], failed)
        return failed

    def _refuse_other(self, mirror: Mirror, marks: dict[PositionKey, LinkMark], *, adopted: bool) -> None:
        """Refuse a mirror of a source topic that was deleted since, whatever its successor has. At every interval.

        Without records it becomes the mirror of the new one.
        """
        source, topic_id = mirror.source.name, mirror.source.topic_id
        others = [where for where in _partitions_of(mirror) if (source, where) in marks and where in self.extents]
        others = [where for where in others if marks[source, where].topic_id != topic_id]
        if not others or adopted:
            return
        self.ends(self.led(others))  # another instance may have appended to them
        for where in others:
            partition = PartitionId(topic_id=topic_id, partition=where.partition)
            if (why := why_other_source(marks[source, where], partition, self.extents[where].end)) is not None:
                raise RefusedError(
                    why,
                    operation=_OPERATION,
                    object_name=mirror.name,
                    hint="delete the destination topic, which is then mirrored anew, or mirror to another name with "
                    "--rename",
                )
        for where in others:
            del marks[source, where]

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

    def _present(self, names: Mapping[str, Mirror]) -> Mapping[str, Topic]:
        found = self._client.metadata(sorted(names), deadline=self._deadline()).topics
        for name in names.keys() & self.ids.keys():
            if name not in found or topic_id_text(found[name].topic_id) != self.ids[name]:
                self._forget(name)
        return found

    def _forget(self, name: str) -> None:
        """The topic was deleted at the destination: whatever has its name now is another one."""
        self.ids.pop(name, None)
        self._configured.pop(name, None)
        self.batch_bytes.pop(name, None)
        self.extents = {where: each for where, each in self.extents.items() if where.topic != name}
        self.refused = {where: each for where, each in self.refused.items() if where.topic != name}

    def _create(
        self, mirrors: Iterable[Mirror], extents: Mapping[PartitionId, Extent], failed: dict[str, MaxbrodError]
    ) -> None:
        new = []
        brokers = len(self._client.metadata([], deadline=self._deadline()).brokers)
        for mirror in mirrors:
            count, factor = mirror.source.partition_count, min(mirror.source.replication_factor or 1, brokers)
            if self._shared:
                configs = plan_shared_configs(mirror.source, self._overrides, replication_factor=factor)
            else:
                configs = dict(plan_mirror_configs(mirror.source, self._overrides, replication_factor=factor).linked)
                ids = (PartitionId(topic_id=mirror.source.topic_id, partition=number) for number in range(count))
                if any(extents[each].start for each in ids if each in extents):
                    # A compacted topic refuses fillers; `_configure` compacts it again.
                    configs[CLEANUP_POLICY] = "delete"
            new.append(NewTopic(name=mirror.name, partitions=count, replication_factor=factor, configs=configs))
        if new:
            failed |= _failures(create_topics(self._client, new, deadline=self._deadline()), "create the topic")

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
        marks: dict[PositionKey, LinkMark],
        *,
        adopted: bool,
    ) -> None:
        """Prove that the topic is ours, and move logs without records to the source's log start.

        An adopted topic has records of others. Whether they are the source's is seen when it is appended to.
        """
        partitions = _partitions_of(mirror)
        fresh = self.led(each for each in partitions if each not in self.extents)
        self.ends(fresh)
        self._refuse_other(mirror, marks, adopted=adopted)
        try:
            to_fill = []
            for where in fresh:
                extent = extents.get(PartitionId(topic_id=mirror.source.topic_id, partition=where.partition))
                end, start = self.extents[where].end, 0 if extent is None else extent.start
                unknown = (mirror.source.name, where) not in marks and not adopted
                try:
                    begins = not end or (unknown and self._is_filled(where, end) and end <= start)
                except RefusedError as error:
                    if not any((mirror.source.name, each) in marks for each in partitions):
                        raise  # a topic that never was a mirror is not touched at all
                    self.refused[where] = error
                    continue
                if begins and start:
                    to_fill.append(StartToFill(where=where, topic_id=self.ids[where.topic], base=0, first=start))
            if to_fill:
                fill_starts(self._client, to_fill, filler_id(self._link), patience_s=self._patience_s)
                self.ends([each.where for each in to_fill])
        except MaxbrodError:
            # They are looked at again, as if for the first time.
            self.extents = {where: each for where, each in self.extents.items() if where not in fresh}
            raise

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
            final, factor = dict(configs), topic.replication_factor
            if int(final.get("min.insync.replicas", "1")) > factor > 0:
                final["min.insync.replicas"] = str(factor)  # more than there are replicas would refuse every batch
            change: dict[str, str | None] = dict(final.items() - topic.configs.items())
            change |= dict.fromkeys(topic.configs.keys() - final.keys())
            if change:
                changes[name] = change
        if changes:
            failed |= _failures(alter_configs(self._client, changes, deadline=self._deadline()), "configure the topic")
        self._configured |= {name: digest for name, (_, digest) in wanted.items() if name not in failed}


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


def _partitions_of(mirror: Mirror) -> list[TopicPartition]:
    """The partitions that a mirror has, or is to have."""
    return [TopicPartition(topic=mirror.name, partition=number) for number in range(mirror.source.partition_count)]


def _failures(outcomes: Mapping[str, ChangeOutcome], what: str) -> dict[str, MaxbrodError]:
    failures: dict[str, MaxbrodError] = {}
    for name, each in outcomes.items():
        if each.code == Code.TOPIC_ALREADY_EXISTS:
            # Since this interval looked: the next one looks again, and judges what is there.
            why = "another process has just created the topic"
            failures[name] = UnavailableError(why, operation=_OPERATION, object_name=name)
        elif not each.done:
            failures[name] = RefusedError(f"cannot {what}: {each.reason}", operation=_OPERATION, object_name=name)
    return failures

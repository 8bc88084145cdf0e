"""Backs up one compacted topic in turns with a second instance: see `plan/turns`, which has the steps.

Each run looks at the coordination topic, decides, and backs up if it is this instance's turn. Everything that it must
know later is in the archive, so that runs may be minutes or days apart, and each may be another process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pyarrow as pa

from maxbrod.archive.foreign_target import InstanceTarget, TargetRequest
from maxbrod.backup.foreign import ForeignBackup
from maxbrod.backup.generations import NOTICE, tombstones_ms
from maxbrod.backup.plan.generations import parse_length
from maxbrod.backup.plan.ranges import RollSchedule
from maxbrod.backup.plan.turns import (
    BACKING_UP,
    LENGTH_MS,
    STAGES,
    Clear,
    Mailbox,
    Role,
    Send,
    Sight,
    Turn,
    TurnsPhase,
    TurnsPolicy,
    decide,
    decode_turn,
    first_turn,
    parse_interval,
)
from maxbrod.backup.report import HIDDEN, BackupReport
from maxbrod.batch.transactions import from_fetch
from maxbrod.catalog.rows import new_run_id
from maxbrod.errors import CorruptDataError, RefusedError, UnavailableError, UnsupportedFormatError, UsageError
from maxbrod.kafka.admin import NewTopic, create_topics
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, list_offsets
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.produce.appends import Feed, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import new_producer_id
from maxbrod.kafka.state.cluster_state import ClusterState, TopicState
from maxbrod.kafka.wire.client import KafkaClient, Topic, retry
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.avro.instances import TOPIC, Event, check_name, decode_coordination, encode_coordination
from maxbrod.layouts.reader import decode_committed
from maxbrod.model import TopicPartition, now_ms
from maxbrod.notices import Notice

_BEHIND_MS: Final = 30_000
"""A generation has caught up when it has read everything that the log had this long ago or later."""
_STEPS_MAX: Final = 50
"""A decision leads to the next one a few times. More would be a mistake of ours."""
_WORDS: Final = {
    TurnsPhase.WAITING: "is passive: it waits for its turn",
    TurnsPhase.CLEARING: "begins generation {generation}: it deletes its files",
    TurnsPhase.CATCHING_UP: "reads generation {generation} from the start of the log",
    TurnsPhase.ACTIVE: "is active with generation {generation}",
    TurnsPhase.RETIRING: "has been told that the other one is active",
    TurnsPhase.LEAVING: "becomes passive: it deletes its files",
}

_COMPACTED: Final = {"cleanup.policy": "compact"}


class TurnsBackup(ForeignBackup):
    """One of the two instances."""

    target: InstanceTarget

    def run(self, *, demand_topics: bool = True, waiting: RollSchedule | None = None) -> BackupReport:
        del waiting
        started_at_ms = now_ms()
        self.tell("planning")
        if self._claimed:
            # A process that was replaced stops also if it has nothing to write, which would be refused.
            self.target.look_at_other()
        cluster = self.capture()
        topic, notices = self._topic(cluster, demand=demand_topics)
        if topic is None:
            none = Notice(kind="missing", message="there is no topic to back up yet")
            return self._idle(started_at_ms, [*notices, none])
        if not self._claimed:
            self._begin(topic)
        before = self._turn.phase
        self._settle(topic)
        if self._turn.phase not in BACKING_UP:
            return self._idle(started_at_ms, [*notices, *self._notices(topic, before)])
        report = self._back_up(cluster, demand_topics=demand_topics)
        while self._turn.phase is TurnsPhase.CATCHING_UP and self._reached is not None:
            if report.finished_at_ms - report.started_at_ms <= _BEHIND_MS:
                self._settle(topic, caught_up=self._reached)
                break
            # The log has grown since this pass was planned. The next one has less to read.
            report = _joined(report, self._back_up(cluster, demand_topics=demand_topics))
        return replace(report, notices=(*report.notices, *self._notices(topic, before)))

    def _open_target(self, request: TargetRequest) -> InstanceTarget:
        options = self.request
        role = Role(options.generation_role or "")
        own, other = (side.instance(options.generation_name) for side in (role, role.other))
        check_name(own)
        length_s = parse_length(options.generation_every, options.layout_options)
        self._policy = TurnsPolicy(
            role=role,
            own=own,
            other=other,
            topic="",
            length_ms=LENGTH_MS if length_s is None else round(length_s * 1000),
            interval_offsets=parse_interval(options.layout_options),
        )
        self._claimed = False
        self._turn = Turn(phase=TurnsPhase.WAITING)
        self._coordination = CoordinationTopic(self.client, Mailbox(), patience_s=self.config.patience)
        if options.start != "earliest":
            raise UsageError("--generation-role reads a topic from its start: --start does not apply")
        return InstanceTarget(self.archive_url, self.config.storage, request, instance=own, other=other)

    def _topic(self, cluster: ClusterState, *, demand: bool) -> tuple[TopicState | None, Sequence[Notice]]:
        """The one topic, and what may be hidden; None: it does not exist yet."""
        chosen = self.choose(demand=demand, cluster=cluster)
        found = [topic for topic in cluster.topics if topic.name in chosen.topics]
        if len(found) > 1:
            raise UsageError(
                f"{len(found)} topics are chosen, and two instances take turns for one: their messages do not name the "
                "topic in the key",
                hint="choose one with --topic, and give each topic instances of its own with --generation-name",
            )
        if found and found[0].compacted is False:
            raise RefusedError(
                "the topic is not compacted: a new generation would lack what retention has deleted",
                operation="take turns",
                object_name=found[0].name,
                hint="back it up without --generation-role",
            )
        return found[0] if found else None, [notice for notice in chosen.notices if notice.kind == HIDDEN]

    def _begin(self, topic: TopicState) -> None:
        """Take over from an earlier process of this instance, in the phase in which that was."""
        self.target.claim(topic.name)
        self._claimed = True
        self._policy = replace(self._policy, topic=topic.name)
        if self.target.document.turn:
            self._turn = decode_turn(self.target.document.turn)
        else:
            first = first_turn(self._policy.role, now_ms=now_ms())
            if first.phase is not TurnsPhase.WAITING and self.target.has_files_of_others():
                raise RefusedError(
                    f"there are files of {self._policy.own} already, and they would be deleted",
                    operation="take turns",
                    object_name=self.target.url,
                    hint="begin with --generation-role passive beside the connector that is active",
                )
            self._store(first)

    def _settle(self, topic: TopicState, caught_up: Mapping[TopicPartition, int] | None = None) -> None:
        """Decide and act until there is nothing to do but to back up."""
        for _ in range(_STEPS_MAX):
            sight = self._look(topic, caught_up)
            decision = decide(self._turn, sight, self._policy)
            if decision.is_nothing(self._turn):
                return
            self._store(decision.turn)
            sends = [action for action in decision.actions if isinstance(action, Send)]
            if sends:
                self._coordination.send(sends)
            if any(isinstance(action, Clear) for action in decision.actions):
                self.target.clear()
            self._store(decision.then)
        raise AssertionError(f"the instance comes to no end: {self._turn}")

    def _look(self, topic: TopicState, caught_up: Mapping[TopicPartition, int] | None) -> Sight:
        self._coordination.look()
        mail = self._coordination.mail
        other = self.target.look_at_other()
        told = self._turn.phase in {TurnsPhase.RETIRING, TurnsPhase.LEAVING}
        return Sight(
            now_ms=now_ms(),
            partitions=range(topic.partition_count),
            mail=mail,
            last_offsets={where.partition: end - 1 for where, end in self.target.survey.positions.items()},
            caught_up=None if caught_up is None else {where.partition: end for where, end in caught_up.items()},
            tombstones_ms=tombstones_ms(topic.effective),
            other_stage=None if other is None else other.stage,
            # It lists and reads headers: only where files are to be deleted because of it.
            other_is_whole=told and self.target.other_is_whole(),
        )

    def _store(self, turn: Turn) -> None:
        if turn == self._turn and self.target.document.turn:
            return
        active = STAGES[turn.phase].complete
        self.target.save(
            turn=turn.encode(),
            stage=STAGES[turn.phase],
            generation=turn.generation,
            activated_at_ms=turn.since_ms if active else 0,
            log_ends={str(partition): end for partition, end in turn.log_ends.items()},
        )
        self._turn = turn

    def _notices(self, topic: TopicState, before: TurnsPhase) -> list[Notice]:
        turn, policy = self._turn, self._policy
        changed = "" if turn.phase is before else f", after it was {before}"
        message = f"{policy.own} {_WORDS[turn.phase].format(generation=turn.generation)}{changed}"
        notices = [Notice(kind=NOTICE, message=message, topic=topic.name)]
        if turn.announced and turn.phase is TurnsPhase.ACTIVE:
            unread = self._coordination.mail.to(policy.other, policy.topic, Event.ACTIVATE)
            what = "has not read that it should take over" if unread else "has not said yet that it has caught up"
            notices.append(
                Notice(
                    kind=NOTICE,
                    message=f"its time is over, and {policy.other} {what}: {policy.own} goes on",
                    topic=topic.name,
                    hint=f"see whether {policy.other} runs" if unread else None,
                )
            )
        return notices

    def _idle(self, started_at_ms: int, notices: Sequence[Notice]) -> BackupReport:
        """The report of a run in which the other instance backs up."""
        return BackupReport(
            run_id=new_run_id(),
            archive=self.target.url,
            started_at_ms=started_at_ms,
            finished_at_ms=now_ms(),
            topics=(),
            notices=tuple(notices),
            objects=0,
            version=0,
            committed=False,
            recovery_point_ms=None,
        )


def _joined(first: BackupReport, second: BackupReport) -> BackupReport:
    """Two passes as one run: the first one's records, and where the second one has come."""
    read = {topic.topic: topic for topic in first.topics}
    topics = tuple(
        replace(
            topic,
            records=topic.records + read[topic.topic].records,
            bytes=topic.bytes + read[topic.topic].bytes,
            raw_bytes=topic.raw_bytes + read[topic.topic].raw_bytes,
        )
        for topic in second.topics
    )
    return replace(second, topics=topics, objects=first.objects + second.objects, committed=True)


class CoordinationTopic:
    """The coordination topic of two instances that take turns.

    `mail` holds the messages that were not acknowledged when `look` was last called.
    """

    def __init__(self, client: KafkaClient, mail: Mailbox, *, patience_s: float) -> None:
        self.mail = mail
        self.client = client
        self._patience_s = patience_s
        self._read_to: dict[TopicPartition, int] = {}

    def look(self) -> None:
        """Read what was written since the last time. The topic is created if it is missing."""
        places = [TopicPartition(topic=TOPIC, partition=partition) for partition in sorted(self._topic().partitions)]
        ends = list_offsets(self.client, dict.fromkeys(places, LATEST), read_committed=True, deadline=self._deadline())
        starts = list_offsets(self.client, dict.fromkeys(places, EARLIEST), deadline=self._deadline())
        for where in places:
            end, read_to = ends[where].offset, self._read_to.get(where, 0)
            # A log that has become shorter was created again.
            first = max(read_to if read_to <= end else 0, starts[where].offset)
            for key, value in self._records(where, first, end):
                # What is not one of the messages that two instances exchange is ignored, as the original does.
                with suppress(UnicodeDecodeError, CorruptDataError, UnsupportedFormatError):
                    self.mail.read(key.decode(), None if value is None else decode_coordination(value))
            self._read_to[where] = end

    def _records(self, where: TopicPartition, first: int, end: int) -> Iterator[tuple[bytes, bytes | None]]:
        for chunk in read_range(self.client, where, first, end, patience_s=self._patience_s):
            aborted = from_fetch(chunk.data, chunk.headers, chunk.aborted) if len(chunk.headers) else ()
            for batch in decode_committed(chunk.data, chunk.headers, aborted, columns=["offset", "key", "value"]):
                offsets, keys, values = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
                yield from (
                    (key, value)
                    for offset, key, value in zip(offsets, keys, values, strict=True)
                    if first <= offset < end and key is not None
                )

    def send(self, messages: Sequence[Send]) -> None:
        """Returns when all replicas have them."""
        from maxbrod.batch.encode import encode  # noqa: PLC0415 - numba
        from maxbrod.batch.hashes import partition_for  # noqa: PLC0415
        from maxbrod.batch.headers import walk  # noqa: PLC0415

        topic = self._topic()
        keys = [message.key.encode() for message in messages]
        values = [None if message.message is None else encode_coordination(message.message) for message in messages]
        # As the original's producer places them: messages of one key stay in order.
        places = partition_for(pa.array(keys, pa.binary()), len(topic.partitions), null_partition=0)
        identity = new_producer_id(self.client, deadline=self._deadline())
        feeds = []
        for partition in sorted(set(places.tolist())):
            rows = [at for at, place in enumerate(places.tolist()) if place == partition]
            data = encode(_records_of([keys[at] for at in rows], [values[at] for at in rows]))
            batches = stamped(data, walk(data), identity, first_sequence=0)
            where = TopicPartition(topic=TOPIC, partition=partition)
            feeds.append(Feed(where=where, topic_id=topic.topic_id, first_offset=None, appends=batches))
        for _ in produce_all(self.client, feeds, patience_s=self._patience_s):
            pass

    def _topic(self) -> Topic:
        found = self.client.metadata([TOPIC], deadline=self._deadline()).topics.get(TOPIC)
        if found is not None:
            return found
        new = NewTopic(name=TOPIC, partitions=1, configs=_COMPACTED)
        outcome = create_topics(self.client, [new], deadline=self._deadline())[TOPIC]
        if not outcome.done:
            raise RefusedError(
                f"the topic could not be created: {outcome.reason}",
                operation="take turns",
                object_name=TOPIC,
                hint="create it with one partition and cleanup.policy=compact",
            )

        def once(limit: Deadline) -> Topic:
            created = self.client.metadata([TOPIC], deadline=limit).topics.get(TOPIC)
            if created is None or any(partition.leader is None for partition in created.partitions.values()):
                raise UnavailableError("the topic has no leader yet", object_name=TOPIC)
            return created

        return retry(once, deadline=self._deadline(), what="a leader of the topic")

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)


def _records_of(keys: Sequence[bytes], values: Sequence[bytes | None]) -> pa.RecordBatch:
    """Records of now."""
    columns = {
        "offset": pa.array(range(len(keys)), pa.int64()),
        "timestamp_ms": pa.array([now_ms()] * len(keys), pa.int64()),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)

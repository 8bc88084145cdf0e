"""Appends whole record batches to partitions exactly once, through elections, restarts and lost connections.

Owns what is sent where and when, and the reaction to each answer. One thread, one connection to each leader, several
requests in flight on each. A request carries one batch of every partition that has one; brokers accept no more. Batches
are pulled from their feeds as room becomes free, so that memory is bounded.

Fences keep foreign writes out. Every batch must be appended exactly where the one before it ended: another offset shows
another writer or a truncated log. A sequence number that the broker does not expect shows that it misses acknowledged
records. The first marker in a partition is sent alone, to a log that ends where it belongs: from then on the broker
refuses markers of the same producer with a lower epoch, and the log end says how many of them had arrived. Brokers also
remember the coordinator epoch of a producer's last marker, which is raised after each lost answer: it is learned from
them, because an earlier attempt may have raised it. And since a broker forgets a producer after a day, the log end is
asked for again before a batch is sent after a long pause.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Final

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.kafka.fetch.offsets import log_end
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.produce.append_queue import IN_FLIGHT_MAX, AppendQueue, QueuedAppend
from maxbrod.kafka.produce.appends import (
    OPERATION,
    Acknowledged,
    Batch,
    Feed,
    Hole,
    gap_in_sequence,
    gone,
    misplaced,
    moved_log,
    prove_topic,
    refusal,
)
from maxbrod.kafka.produce.lane import Answer, Lane
from maxbrod.kafka.produce.producer_ids import ProducerIdentity, coordinator_epoch, new_producer_id
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, Reaction, code_name, reaction

REQUEST_BYTES: Final = 4 << 20
"""The target size of a request, if enough partitions have batches. Brokers accept 100 MB by default."""
_REQUEST_BYTES_MIN: Final = 64 << 10
_TOPIC_CODES: Final = frozenset({Code.UNKNOWN_TOPIC_ID, Code.INCONSISTENT_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION})
# The share of the request timeout that a broker may wait for replicas, so that it answers before the timeout.
_BROKER_SHARE: Final = 0.6
_IDLE_S: Final = 0.5
_BREATH_S: Final = 0.001
_SETTLING_S: Final = 0.2
# The longest that a finished request waits for others to be sent with it.
_TOGETHER_S: Final = 0.005
# Markers name a topic by name only. The topic id is verified again when the last check is older than this.
_TRUSTED_S: Final = 0.1
# Brokers forget a producer a day after its last batch, and then accept any sequence number. A process that was
# suspended for longer than this asks for the log end before it sends anything.
_PAUSE_S_MAX: Final = 600.0


def produce_all(
    client: KafkaClient,
    feeds: Iterable[Feed],
    *,
    in_flight: int = IN_FLIGHT_MAX,
    at_once: int | None = None,
    request_bytes: int = REQUEST_BYTES,
    patience_s: float = PATIENCE_S,
    transactional_id: str | None = None,
    markers: ProducerIdentity | None = None,
) -> Iterator[Acknowledged]:
    """Append all feeds concurrently. Yields acknowledgements, in order for each partition.

    `at_once` limits the number of concurrent feeds; a finished one makes room for the next, whose appends are pulled
    then. Batches are sent again with their sequence numbers until they are acknowledged, so that each is in the log
    once. Raises UnavailableError if a partition accepts nothing for `patience_s` seconds, TopicGoneError if a topic is
    deleted or recreated, RefusedError if other data is where a batch should be, and the errors of `refusals`. What was
    yielded before is in the log. `markers` is the producer of the markers in holes, a new one by default. With
    `transactional_id` all batches are part of its open transaction, to which the partitions have been added.
    """
    if not 1 <= in_flight <= IN_FLIGHT_MAX:
        raise UsageError(f"1 to {IN_FLIGHT_MAX} requests may be in flight, not {in_flight}")
    queues = (AppendQueue(feed, in_flight_max=in_flight, patience_s=patience_s) for feed in feeds)
    stream = ProduceStream(
        client,
        queues,
        in_flight_max=in_flight,
        at_once=at_once,
        request_bytes=request_bytes,
        transactional_id=transactional_id,
        markers=markers,
    )
    with closing(stream):
        while stream.busy:
            done = stream.step()
            if done:
                began = time.monotonic()
                yield from done
                stream.forgive(time.monotonic() - began)


class ProduceStream:
    """The loop: send what may be sent, wait for the oldest response, read those that arrived with it."""

    def __init__(
        self,
        client: KafkaClient,
        queues: Iterable[AppendQueue],
        *,
        in_flight_max: int,
        at_once: int | None,
        request_bytes: int,
        transactional_id: str | None,
        markers: ProducerIdentity | None = None,
    ) -> None:
        self._client = client
        self._waiting = iter(queues)
        self._at_once = at_once
        self._queues = list(islice(self._waiting, at_once))
        self._lanes: dict[int, Lane] = {}
        self._in_flight_max = in_flight_max
        self._request_bytes = request_bytes
        self._transactional_id = transactional_id
        self._marker_identity = markers
        self._learns_epochs = markers is not None
        """True if others, or an earlier attempt, may have written markers of this producer."""
        self._coordinator_epoch = 0
        self._proven_at: dict[str, float] = {}

    @property
    def busy(self) -> bool:
        return bool(self._queues)

    def close(self) -> None:
        """Close connections with requests in flight: their responses would be read as those of later requests."""
        for lane in self._lanes.values():
            if lane.flights:
                lane.connection.close()
        self._lanes.clear()

    def forgive(self, spent_s: float) -> None:
        """Do not count the time that the caller used against the brokers."""
        if spent_s > 1:
            for queue in self._queues:
                queue.renew_patience()

    def step(self) -> list[Acknowledged]:
        """Send what may be sent, then read the response that is due first and all that have arrived."""
        recovered = self._send()
        if recovered:
            return recovered
        lane = min(
            (lane for lane in self._lanes.values() if lane.flights),
            key=lambda lane: lane.flights[0].sent_at,
            default=None,
        )
        if lane is None:
            # Nothing is in flight, and nothing may be sent yet.
            pauses = [max(queue.pause_s, _BREATH_S) for queue in self._queues]
            time.sleep(min([*pauses, _IDLE_S]) if pauses else 0)
            for queue in self._queues:
                queue.check_patience()
            return []
        done = self._receive(lane)
        while lane.at_hand:
            done += self._receive(lane)
        return done

    def _request_deadline(self) -> Deadline:
        return Deadline.after(self._client.request_timeout_s)

    # Sending

    def _send(self) -> list[Acknowledged]:
        """Send, and return what recovery found to be appended already."""
        recovered: list[Acknowledged] = []
        for queue in self._queues:
            if queue.failed and not queue.in_flight and queue.pause_s <= 0:
                self._recover(queue)
                recovered += queue.acknowledged()
        for node_id, queues in self._ready_by_leader().items():
            lane = self._lane(node_id, queues)
            if lane is None or (lane.connection.throttled and lane.flights):
                continue
            self._send_all(lane, queues)
        return recovered

    def _send_all(self, lane: Lane, queues: list[AppendQueue]) -> None:
        """Send as many requests as there is room for by one system call, unless their feeds are slow."""
        began = time.monotonic()
        while lane.room and self._put_one(lane, queues):
            if time.monotonic() - began > _TOGETHER_S:
                break
        try:
            lane.connection.flush(self._request_deadline())
        except UnavailableError as error:
            self._lose(lane, error)

    def _ready_by_leader(self) -> dict[int, list[AppendQueue]]:
        groups: dict[int, list[AppendQueue]] = defaultdict(list)
        if any(queue.finished for queue in self._queues):
            self._dismiss()
        for queue in self._queues:
            if queue.next_entry() is not None and (leader := self._leader(queue)) is not None:
                groups[leader].append(queue)
        return groups

    def _dismiss(self) -> None:
        for queue in self._queues:
            if queue.finished and queue.unproven:
                end = log_end(self._client, queue.where, deadline=queue.deadline)
                if end != queue.acknowledged_to:
                    raise misplaced(queue.where, queue.source_offset, landed=end, expected=queue.acknowledged_to)
        self._queues = [queue for queue in self._queues if not queue.finished]
        if self._at_once is not None:
            self._queues += islice(self._waiting, self._at_once - len(self._queues))

    def _leader(self, queue: AppendQueue) -> int | None:
        if queue.leader is None:
            try:
                found = self._client.leader(queue.where, deadline=queue.deadline)
            except UnavailableError as error:
                queue.fail(error)
                return None
            except UsageError as error:
                self._check_topic(queue)
                queue.fail(UnavailableError(error.message, operation=OPERATION, object_name=str(queue.where)))
                return None
            if found.topic.topic_id != queue.feed.topic_id:
                raise gone(queue.where, queue.source_offset, recreated=True)
            queue.leader = found.node_id
        return queue.leader

    def _lane(self, node_id: int, queues: Sequence[AppendQueue]) -> Lane | None:
        lane = self._lanes.get(node_id)
        if lane is not None and (lane.flights or lane.connection.usable):
            return lane
        try:
            connection = self._client.connection(node_id, deadline=queues[0].deadline)
        except UnavailableError as error:
            self._fail_all(queues, error)
            return None
        timeout_ms = int(self._client.request_timeout_s * _BROKER_SHARE * 1000)
        lane = Lane(
            connection,
            node_id,
            in_flight_max=self._in_flight_max,
            timeout_ms=timeout_ms,
            transactional_id=self._transactional_id,
        )
        self._lanes[node_id] = lane
        return lane

    def _put_one(self, lane: Lane, queues: list[AppendQueue]) -> bool:
        """Put one request with one batch, or one hole, of each partition that has one. False if none has."""
        batches: list[tuple[AppendQueue, QueuedAppend]] = []
        holes: list[tuple[AppendQueue, QueuedAppend]] = []
        size = 0
        for place, queue in enumerate(queues):
            entry = queue.next_entry()
            if entry is None or not self._is_in_place(queue, entry):
                continue
            if isinstance(entry.append, Hole):
                holes.append((queue, entry))
                continue
            size += len(entry.append.data)
            if batches and size > self._request_bytes:
                queues[:] = queues[place:] + queues[:place]  # those left out come first next time
                break
            batches.append((queue, entry))
        chosen = batches or holes
        if not chosen:
            return False
        try:
            self._put(lane, chosen)
        except UnavailableError as error:
            self._lose(lane, error, [queue for queue, _ in chosen])
            return False
        for queue, _ in chosen:
            queue.sent()
        return True

    def _is_in_place(self, queue: AppendQueue, entry: QueuedAppend) -> bool:
        """True if the log ends where everything acknowledged ends, as far as that is not known anyway.

        It may not where another process has taken the partition over, or where this one was suspended.
        """
        if queue.anywhere or queue.in_flight:
            return True
        paused = queue.unproven_s > _PAUSE_S_MAX
        if not paused and (queue.fenced or not isinstance(entry.append, Hole)):
            return True
        try:
            end = self._log_end(queue)
            if isinstance(entry.append, Hole) and not queue.fenced:
                self._learn_epoch(queue)
        except UnavailableError as error:
            queue.fail(error)
            return False
        expected = queue.acknowledged_to + entry.landed
        if end == expected:
            queue.proven()
            return True
        self._check_topic(queue)
        moved = moved_log(queue.where, end, expected)
        if paused or not expected < end <= entry.end_offset:
            raise moved
        queue.fail(moved)  # `_recover` counts the markers of the other process
        return False

    def _put(self, lane: Lane, chosen: Sequence[tuple[AppendQueue, QueuedAppend]]) -> None:
        deadline = self._request_deadline()
        if isinstance(chosen[0][1].append, Batch):
            lane.put_batches(chosen, deadline)
            return
        for queue, _ in chosen:
            if time.monotonic() - self._proven_at.get(queue.where.topic, 0.0) > _TRUSTED_S:
                prove_topic(self._client, queue.where, queue.feed.topic_id, deadline=queue.deadline)
                self._proven_at[queue.where.topic] = time.monotonic()
        if self._marker_identity is None:
            self._marker_identity = new_producer_id(self._client, deadline=chosen[0][0].deadline)
        lane.put_holes(chosen, self._marker_identity, self._coordinator_epoch, deadline)

    # Answers

    def _receive(self, lane: Lane) -> list[Acknowledged]:
        try:
            flight, answers = lane.receive(self._request_deadline())
        except UnavailableError as error:
            self._lose(lane, error)
            return []
        done: list[Acknowledged] = []
        for place, (queue, entry) in enumerate(flight.entries):
            queue.in_flight -= 1
            self._settle(queue, entry, answers[place], flight.counts[place] if flight.counts else 0)
            if entry.done:
                done += queue.acknowledged()
        return done

    def _settle(self, queue: AppendQueue, entry: QueuedAppend, answer: Answer, asked: int) -> None:
        if isinstance(entry.append, Hole) and not answer.code:
            self._fill(queue, entry, asked)
        elif answer.code == Code.DUPLICATE_SEQUENCE_NUMBER:
            # An earlier attempt was appended and its response was lost. The broker no longer remembers the offset, but
            # every batch has one possible offset.
            entry.done = True
        elif not answer.code:
            entry.found_offset = answer.base_offset
            if answer.base_offset != entry.base_offset and not queue.anywhere:
                raise misplaced(
                    queue.where, entry.append.source_offset, landed=answer.base_offset, expected=entry.base_offset
                )
            entry.log_append_time_ms = answer.log_append_time_ms
            entry.done = True
        else:
            self._react(queue, entry, answer)

    def _fill(self, queue: AppendQueue, hole: QueuedAppend, asked: int) -> None:
        if queue.fenced:
            hole.land(hole.landed + asked)
            queue.again()
            return
        queue.fenced = True
        expected = hole.base_offset + hole.landed + asked
        try:
            end = self._log_end(queue)
            if end < expected:
                self._check_topic(queue)
                raise moved_log(queue.where, end, expected)
            self._land(queue, hole, end, own=asked)
        except UnavailableError as error:
            queue.fail(error)  # `_recover` counts
            return
        queue.again()

    def _react(self, queue: AppendQueue, entry: QueuedAppend, answer: Answer) -> None:
        error = UnavailableError(
            f"the broker answered {code_name(answer.code)}", operation=OPERATION, object_name=str(queue.where)
        )
        if answer.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # A batch before it failed, and this one is sent again after that. If it is the first itself, the broker
            # misses acknowledged records.
            if entry is queue.head and not queue.failed:
                raise self._missing_records(queue, entry.append.source_offset)
        elif answer.code == Code.TRANSACTION_COORDINATOR_FENCED:
            queue.fenced = False  # a late marker has raised the epoch since it was learned: learn it again
        elif answer.code in _TOPIC_CODES:
            if entry is queue.head:  # the entries after it have the same error
                self._check_topic(queue)
        elif answer.code == Code.CORRUPT_MESSAGE and not (entry is queue.head and queue.confirm("it is damaged")):
            pass  # perhaps damaged by the network; send it again
        elif reaction(answer.code) is Reaction.FATAL:
            transactional = self._transactional_id is not None
            offset = entry.append.source_offset
            raise refusal(answer.code, answer.details, queue.where, offset, transactional=transactional)
        self._client.forget(queue.where.topic)
        queue.fail(error)

    def _missing_records(self, queue: AppendQueue, offset: int) -> Exception:
        if queue.anywhere:
            return refusal(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, None, queue.where, offset, transactional=True)
        end = log_end(self._client, queue.where, deadline=queue.deadline)
        return gap_in_sequence(queue.where, offset, acknowledged_to=queue.acknowledged_to, log_end=end)

    def _check_topic(self, queue: AppendQueue) -> None:
        topics = self._client.metadata([queue.where.topic], deadline=queue.deadline).topics
        topic = topics.get(queue.where.topic)
        if topic is not None and topic.topic_id != queue.feed.topic_id:
            raise gone(queue.where, queue.source_offset, recreated=True)
        if topic is None and queue.confirm("there is no such topic"):
            raise gone(queue.where, queue.source_offset, recreated=False)

    # Failures

    def _lose(self, lane: Lane, error: UnavailableError, queues: Sequence[AppendQueue] = ()) -> None:
        """The connection is lost, and with it the responses: each request on it may have been carried out or not.

        So every batch is sent again as it was. Its sequence number tells the broker whether it has it already.
        """
        lane.connection.close()
        self._lanes.pop(lane.node_id, None)
        if isinstance(error.__cause__, TimeoutError):
            # On a slow link a smaller request may arrive in time.
            self._request_bytes = max(self._request_bytes // 2, _REQUEST_BYTES_MIN)
        lost = list(queues)
        for flight in lane.flights:
            for queue, _ in flight.entries:
                queue.in_flight -= 1
                lost.append(queue)
        lane.flights.clear()
        self._fail_all(lost, error)

    def _fail_all(self, queues: Iterable[AppendQueue], error: UnavailableError) -> None:
        for queue in queues:
            self._client.forget(queue.where.topic)
            queue.fail(error)

    def _recover(self, queue: AppendQueue) -> None:
        try:
            if queue.head is not None and isinstance(queue.head.append, Hole):
                self._count_markers(queue, queue.head)
        except UsageError as error:
            self._check_topic(queue)
            queue.failed = False
            queue.fail(UnavailableError(error.message, operation=OPERATION, object_name=str(queue.where)))
        except UnavailableError as error:
            queue.failed = False
            queue.fail(error)
        else:
            queue.recover()

    def _count_markers(self, queue: AppendQueue, hole: QueuedAppend) -> None:
        """Count the markers that were written, by the log end offset: markers have no sequence numbers."""
        end = log_end(self._client, queue.where, deadline=queue.deadline)
        # A broker that was stopped may still process earlier requests. If that takes longer than this pause, the next
        # batch is appended beyond its offset, and that is refused.
        time.sleep(_SETTLING_S)
        if log_end(self._client, queue.where, deadline=queue.deadline) != end:
            raise UnavailableError("the log is still growing", operation=OPERATION, object_name=str(queue.where))
        self._coordinator_epoch += 1  # fences an earlier request that arrives later
        self._land(queue, hole, end)

    def _learn_epoch(self, queue: AppendQueue) -> None:
        """Let markers have a higher epoch than those that the broker knows, so that it refuses late ones among them."""
        if self._marker_identity is not None and self._learns_epochs:
            known = coordinator_epoch(
                self._client, queue.where, self._marker_identity.producer_id, deadline=queue.deadline
            )
            self._coordinator_epoch = max(self._coordinator_epoch, known + 1)

    def _log_end(self, queue: AppendQueue) -> int:
        """UnavailableError also if the broker does not know the topic at the moment."""
        try:
            return log_end(self._client, queue.where, deadline=queue.deadline)
        except UsageError as error:
            self._check_topic(queue)
            raise UnavailableError(error.message, operation=OPERATION, object_name=str(queue.where)) from error

    def _land(self, queue: AppendQueue, hole: QueuedAppend, end: int, *, own: int = 0) -> None:
        """The log ends at `end`. Before the first marker of this process, whatever is behind the hole is another's.

        So many markers were acknowledged: `own`. Whatever else is in the hole must be markers, too.
        """
        if end > hole.end_offset and not queue.fenced:
            raise moved_log(queue.where, end, hole.end_offset)
        if end > hole.end_offset:
            raise misplaced(queue.where, queue.source_offset, landed=end, expected=hole.end_offset)
        begin = hole.base_offset + hole.landed
        if end > begin + own:
            chunks = read_range(self._client, queue.where, begin, end, topic_id=queue.feed.topic_id)
            if not all(chunk.headers.control.all() for chunk in chunks):
                raise misplaced(queue.where, queue.source_offset, landed=end, expected=begin + own)
        hole.land(max(0, end - hole.base_offset))

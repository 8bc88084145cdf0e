"""Ingress from a tree: follows the tree of Parquet segments and produces its records to the destination topics.

One loop decides, by `machine`, what each partition does next; a pool of threads carries it out. The loop lists the
tree, reads the events that instances share, and never waits for a segment. A thread of its own receives notifications.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Final, Self, TypeVar

from maxbrod.config import Config
from maxbrod.errors import MaxbrodError, UsageError
from maxbrod.kafka.admin import NewTopic
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.parquet.events import EventType
from maxbrod.model import now_ms
from maxbrod.replicate.options import IngressTreeOptions, SourceTopic, sources_of
from maxbrod.replicate.seed import machine
from maxbrod.replicate.seed.control_topics import (
    POLICY,
    Checkpoints,
    ControlTopic,
    EventPublisher,
    SegmentEvents,
    TreeSource,
    ensure_topic,
)
from maxbrod.replicate.seed.machine import List, Look, Phase, Process, Segment, Settings, Worker
from maxbrod.replicate.seed.partition import Destination, FollowedPartition, PartitionOutcome, TreePartition, TreeReport
from maxbrod.replicate.seed.queue import Notifications, Queue, QueueCounts, SqsQueue, SqsSettings
from maxbrod.replicate.seed.tree import Tree
from maxbrod.storage.stores import open_storage

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)
_SECOND: Final = 1_000_000_000
_TICK_S: Final = 0.1
_EVENTS_EVERY_NS: Final = _SECOND
_AGAIN_NS: Final = 5 * _SECOND
_QUEUE_WAIT_S: Final = 5  # a stop waits for it
_RETRIES_MAX: Final = 50
_JITTER: Final = 0.25


class TreeIngress:
    """Call `run`, or `tick` again and again. All state that must survive a crash is at the destination.

    Delivery is exactly once by default: consumers that read committed records see each record once, in order, whatever
    was killed or stopped. With `at-least-once` the last batch of a partition can be doubled by a crash.
    """

    def __init__(
        self,
        config: Config,
        *,
        stop: threading.Event | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        queue: Queue | None = None,
    ) -> None:
        options: IngressTreeOptions = config.ingress_tree
        self.archive, self._kafka = config.archive_url, config.cluster
        self.options = options
        self.stop = stop or threading.Event()
        self._sources = sources_of(options)
        self._settings = Settings(
            waits_ns=doubling_waits(round(options.lost_segment_timeout * _SECOND), options.late_segment_retries),
            first_delay_ns=round(options.first_segment_delay * _SECOND),
            poll_ns=round(options.poll_every * _SECOND),
        )
        self._patience_s = config.patience
        self._clock_ns = clock_ns
        self._started_at_ms = now_ms()
        self._tree = Tree(open_storage(config.archive_url, config.storage), options.key_prefix)
        self._partitions: dict[TreeSource, FollowedPartition] = {}
        self._listed_ns = dict.fromkeys(self._sources, 0)
        self._events_ns = 0
        self.listings = self.listing_ns = 0
        self._wake, self._local = threading.Event(), threading.local()
        self._notifications: Notifications | None = None
        self._stack = ExitStack()
        with ExitStack() as opening:
            self._open(opening, config, queue)
            self._stack = opening.pop_all()

    def _open(self, stack: ExitStack, config: Config, queue: Queue | None) -> None:
        options = self.options
        client = stack.enter_context(KafkaClient(self._kafka, stop=self.stop))
        deadline = Deadline.after(self._patience_s)
        ensure_topic(client, NewTopic(name=options.checkpoint_topic, configs={POLICY: "compact"}), deadline=deadline)
        self._client = client
        self._clients = stack.enter_context(ExitStack())  # before the pool, whose threads use them
        self._checkpoints = Checkpoints(ControlTopic(client, options.checkpoint_topic, patience_s=self._patience_s))
        self._events: SegmentEvents | None = None
        if options.events_topic is not None:
            retention = {POLICY: "delete", "retention.ms": str(round(options.events_retention * 1000))}
            ensure_topic(client, NewTopic(name=options.events_topic, configs=retention), deadline=deadline)
            # Readers of their own: a client belongs to one thread at a time.
            reading = stack.enter_context(KafkaClient(self._kafka, stop=self.stop))
            writing = stack.enter_context(KafkaClient(self._kafka, stop=self.stop))
            self._events = SegmentEvents(
                ControlTopic(reading, options.events_topic, patience_s=self._patience_s),
                EventPublisher(writing, options.events_topic, patience_s=self._patience_s),
                retention_ns=round(options.events_retention * _SECOND),
            )
        self._pool = stack.enter_context(ThreadPoolExecutor(options.parallelism, "ingress"))
        if queue is None and options.queue is not None:
            settings = SqsSettings(queue=options.queue, endpoint=options.sqs_endpoint, wait_s=_QUEUE_WAIT_S)
            queue = SqsQueue(settings, config.storage.s3)
        if queue is not None and self._events is not None:
            self._notifications = Notifications(
                queue, self._tree, self._events.keep, local_region=options.local_region, stop=self.stop
            )
            stack.callback(self._notifications.join)
        stack.callback(self.stop.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, on_change: Callable[[TreeIngress], None] = lambda _: None) -> TreeReport:
        """Follow the tree until `stop` is set, or with `once` until everything in it is at the destination."""
        while not self.finished:
            if self.tick():
                on_change(self)
            self.rest()
        return self.report()

    @property
    def finished(self) -> bool:
        if self.stop.is_set():
            return not any(partition.running for partition in self._partitions.values())
        return (
            self.options.once
            and all(self._listed_ns.values())
            and all(partition.settled for partition in self._partitions.values())
        )

    @property
    def counts(self) -> QueueCounts | None:
        """The counts of notifications by result; None: there is no queue."""
        return None if self._notifications is None else self._notifications.counts

    @property
    def notification_lag_ms(self) -> int | None:
        return None if self._notifications is None else self._notifications.lag_ms

    def statuses(self) -> tuple[TreePartition, ...]:
        return tuple(each.status() for _, each in sorted(self._partitions.items()))

    def report(self) -> TreeReport:
        return TreeReport(
            archive=self.archive,
            delivery=self.options.delivery,
            started_at_ms=self._started_at_ms,
            finished_at_ms=now_ms(),
            partitions=self.statuses(),
            notifications=self.counts,
            unmatched=self.unmatched,
        )

    @property
    def unmatched(self) -> tuple[str, ...]:
        """The sources of which no segment was found."""
        known = {partition.of_topic for partition in self._partitions}
        return tuple(f"{source.region}/{source.topic}" for source in self._sources if source not in known)

    def rest(self) -> None:
        """Sleep until something happens, at most for a moment."""
        self._wake.wait(_TICK_S)
        self._wake.clear()

    # The loop

    def tick(self) -> bool:
        """Do what is due. Whether any partition has changed."""
        now_ns = self._clock_ns()
        changed = self._collect(now_ns)
        if self.stop.is_set():
            return changed
        if self._notifications is not None:
            self._notifications.check()
        if self._events is not None and now_ns >= self._events_ns:
            self._events_ns = now_ns + _EVENTS_EVERY_NS
            self._hear(self._events, now_ns)
        for topic, listed_ns in self._listed_ns.items():
            if not listed_ns or now_ns >= listed_ns + self._settings.poll_ns:
                self._list(topic, now_ns)
        starting = [each for each in self._due(now_ns) if each.worker.phase is Phase.INIT]
        if any(now_ns >= each.worker.due_ns for each in starting):
            self._guarded(self._checkpoints.refresh, starting, now_ns)
        for partition in self._due(now_ns):
            changed |= self._advance(partition, now_ns)
        return changed

    def _due(self, now_ns: int) -> Sequence[FollowedPartition]:
        return [
            partition
            for partition in self._partitions.values()
            if partition.due_ns <= now_ns and partition.running is None and not partition.gone
        ]

    def _advance(self, partition: FollowedPartition, now_ns: int) -> bool:
        if partition.standby_until_ns and not self._take_back(partition, now_ns):
            return False
        before = partition.worker.phase
        partition.worker, action = machine.decide(partition.worker, now_ns, self._settings)
        while isinstance(action, Look):
            worker, segment = partition.worker, action.segment
            looked = self._guarded(partial(self._look, worker, segment), [partition], now_ns)
            if looked is None:
                return True
            partition.worker, action = machine.decide(looked, now_ns, self._settings)
        if isinstance(action, List):
            self._list(partition.source.of_topic, now_ns)
        elif isinstance(action, Process):
            self._submit(partition, action)
        else:
            partition.due_ns, partition.waits = action.until_ns, True
        return partition.worker.phase is not before

    def _look(self, worker: Worker, segment: Segment) -> Worker:
        return machine.looked(worker, segment, self._tree.before(segment))

    def _submit(self, partition: FollowedPartition, action: Process) -> None:
        def work() -> PartitionOutcome:
            return partition.work(
                action,
                self._client_of_thread(),
                self._tree,
                self._checkpoints,
                records_max=self.options.batch_size,
                clock_ns=self._clock_ns,
                stop=self.stop,
            )

        partition.process = action
        partition.running = self._pool.submit(work)
        partition.running.add_done_callback(lambda _: self._wake.set())

    def _client_of_thread(self) -> KafkaClient:
        found: KafkaClient | None = getattr(self._local, "client", None)
        if found is None:
            found = self._local.client = KafkaClient(self._kafka)
            self._clients.callback(found.close)
        return found

    def _collect(self, now_ns: int) -> bool:
        changed = False
        for partition in self._partitions.values():
            if partition.running is not None and partition.running.done():
                outcome = partition.running.result()
                takeover_ns = round(self.options.takeover * _SECOND)
                partition.settle(outcome, now_ns, self._settings, takeover_ns=takeover_ns)
                changed = True
        return changed

    def _take_back(self, partition: FollowedPartition, now_ns: int) -> bool:
        """True if this instance takes a partition back, because the one that took it over makes no progress."""
        self._guarded(self._checkpoints.refresh, [partition], now_ns)
        partition.due_ns = max(partition.due_ns, now_ns + min(self._settings.poll_ns, _AGAIN_NS))
        found, known = self._checkpoints.offset(partition.source), partition.worker.checkpoint
        if found is not None and (known is None or found > known):
            partition.worker = machine.interrupted(partition.worker, found)
            partition.standby_until_ns = now_ns + round(self.options.takeover * _SECOND)
            return False
        if now_ns < partition.standby_until_ns:
            return False
        partition.standby_until_ns = 0
        return True

    # The tree, events and notifications

    def _list(self, topic: SourceTopic, now_ns: int) -> None:
        """List a topic, for all of its partitions. New ones begin."""
        mine = [partition for partition in self._partitions.values() if partition.source.of_topic == topic]
        listings = self._guarded(partial(self._timed_listing, topic), mine, now_ns)
        if listings is None:
            self._listed_ns[topic] = now_ns + _AGAIN_NS - self._settings.poll_ns
            return
        if not (self._listed_ns[topic] or listings or mine):
            _LOG.warning("the tree has no segment of %s/%s yet: nothing of it is produced", topic.region, topic.topic)
        self._listed_ns[topic] = now_ns
        for number in listings:
            self._partition(TreeSource(*topic, number), now_ns)
        self._look_at_destination(topic, now_ns)
        for each in mine:
            starts = each.worker.phase is Phase.INIT and now_ns < each.worker.due_ns
            if each.running is None and not starts:
                found = listings.get(each.source.partition, machine.Listing())
                checkpoint = self._checkpoints.offset(each.source)
                each.worker = machine.listed(each.worker, found, checkpoint, now_ns, self._settings)
                _look_at(each, now_ns)

    def _timed_listing(self, topic: SourceTopic) -> dict[int, machine.Listing]:
        began_ns = time.perf_counter_ns()
        listings = self._tree.listing(topic.region, topic.topic)
        self.listings += 1
        self.listing_ns += time.perf_counter_ns() - began_ns
        return listings

    def _look_at_destination(self, topic: SourceTopic, now_ns: int) -> None:
        """Nothing is in step with a topic that is not there, also if the checkpoints say that all was produced."""
        mine = [partition for partition in self._partitions.values() if partition.source.of_topic == topic]
        name = self._sources[topic]
        ask = partial(self._client.metadata, [name], deadline=Deadline.after(self._patience_s))
        metadata = self._guarded(ask, mine, now_ns) if mine else None
        if metadata is not None:
            for each in mine:
                each.absent = None
                try:
                    each.destination.demand(metadata.topics.get(name))
                except MaxbrodError as error:
                    each.absent = str(error)

    def _guarded(self, read: Callable[[], T], partitions: Sequence[FollowedPartition], now_ns: int) -> T | None:
        """None if a store or a broker does not answer: the partitions say so, and the next tick tries again."""
        try:
            found = read()
        except MaxbrodError as error:
            if not error.retryable:
                raise
            _LOG.warning("%s", error)
            for partition in partitions:
                partition.told.faults += 1
                partition.unreachable, partition.due_ns = str(error), now_ns + _AGAIN_NS
            return None
        for partition in partitions:
            partition.unreachable = None
        return found

    def _partition(self, source: TreeSource, now_ns: int) -> FollowedPartition:
        found = self._partitions.get(source)
        if found is None:
            delay_ns = jittered(round(self.options.worker_init_delay * _SECOND), random.uniform)
            topic = self._sources[source.of_topic]
            destination = Destination(source, topic, self.options, patience_s=self._patience_s)
            found = self._partitions[source] = FollowedPartition(source, destination, machine.started(now_ns, delay_ns))
        return found

    def _hear(self, events: SegmentEvents, now_ns: int) -> None:
        for event in self._guarded(partial(events.poll, now_ns=now_ns), (), now_ns) or ():
            named = event.segment
            source = TreeSource(named.region, named.topic, named.partition)
            if source.of_topic not in self._sources:
                continue
            partition = self._partition(source, now_ns)
            segment = self._tree.segment_of(event)
            if event.type is EventType.CREATED:
                partition.worker = machine.arrived(partition.worker, segment)
            else:
                partition.worker = machine.removed(partition.worker, segment.path)
            _look_at(partition, now_ns)


def doubling_waits(total_ns: int, count: int) -> tuple[int, ...]:
    """Waits for a late segment, each twice the one before. The last one takes what rounding left: the sum is exact."""
    if not 1 <= count <= _RETRIES_MAX:
        raise UsageError(f"a late segment is retried 1 to {_RETRIES_MAX} times, not {count}")
    first = total_ns // ((1 << count) - 1)
    if first < 1:
        raise UsageError(
            f"{count} doubling waits do not fit into {total_ns} ns", hint="use fewer retries, or a longer timeout"
        )
    waits = [first << index for index in range(count - 1)]
    return (*waits, total_ns - sum(waits))


def jittered(wait_ns: int, uniform: Callable[[float, float], float]) -> int:
    """The wait, up to a quarter shorter or longer, so that many instances do not act in step."""
    return round(wait_ns * uniform(1 - _JITTER, 1 + _JITTER))


def _look_at(partition: FollowedPartition, now_ns: int) -> None:
    """Something has changed: decide again, unless the destination has failed and is tried again later."""
    partition.waits = False
    if partition.fault is None:
        partition.due_ns = min(partition.due_ns, now_ns)

"""A client of one cluster: a connection to each broker that is needed, and the last metadata.

Owns connections, the choice of brokers, and metadata: brokers, topics with their ids, the leader of each partition.
Also partitions as requests and responses list them: grouped by topic, and split to bound a request. Callers that find
stale metadata call `forget`. Requests that any broker can answer are retried here; `offsets` and `ranges` retry those
to a leader.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self, TypeVar
from uuid import UUID

from kafka.protocol.metadata import MetadataRequest

from maxbrod.board import TaskStop, seat_of_task, stop_of_task
from maxbrod.errors import StoppedError, UnavailableError, UsageError
from maxbrod.kafka.state.cluster_state import Broker
from maxbrod.kafka.wire.connection import CUT_OFF, Connection, Message
from maxbrod.kafka.wire.deadline import Backoff, Deadline
from maxbrod.kafka.wire.error_codes import Code, Reaction, answered_with, reaction
from maxbrod.kafka.wire.security import protocol_mistake
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from maxbrod.config import KafkaConfig

Result = TypeVar("Result")
Value = TypeVar("Value")
REQUEST_TIMEOUT_S: Final = 30.0
PATIENCE_S: Final = 120.0
_DEFAULT_PORT: Final = 9092
_LOG: Final = logging.getLogger(__name__)
_WARN_FIRST_S: Final = 3.0
_WARN_EVERY_S: Final = 60.0
# One broker that does not answer must not use up the time of the others.
_ONE_BROKER_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The replicas of a partition. `leader` is None while there is none."""

    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic is identified by its id: a topic of the same name may be deleted and created again."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: Mapping[int, Partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The metadata of one response. A topic that does not exist is not in `topics`."""

    cluster_id: str | None
    controller: int
    brokers: Mapping[int, Broker]
    topics: Mapping[str, Topic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The leader of a partition, and the topic with its id."""

    node_id: int
    leader_epoch: int
    topic: Topic


class KafkaClient:
    """Belongs to one thread and one process. Close it, or use it in a `with`."""

    def __init__(
        self,
        config: KafkaConfig,
        *,
        client_id: str = "maxbrod",
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        stop: threading.Event | None = None,
    ) -> None:
        """When `stop` is set, nothing is retried: a request that fails is an error. By default it is the task's."""
        self.stop: threading.Event | TaskStop | None = stop or stop_of_task()
        self.seat: Final = seat_of_task()
        """The seat of the task that this client belongs to, if any: what it reads counts there."""
        self.request_timeout_s = request_timeout_s
        self._config = config
        self._client_id = client_id
        self._bootstrap = _addresses(config.bootstrap)
        self._connections: dict[tuple[str, int], Connection] = {}
        self._failed_at: dict[tuple[str, int], float] = {}
        self._diagnosed: set[tuple[str, int]] = set()
        self._known = Metadata(cluster_id=None, controller=-1, brokers={}, topics={})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def idle(self) -> bool:
        """True if no broker owes an answer."""
        return all(connection.idle for connection in self._connections.values())

    def begin_anew(self) -> None:
        """Serve another task: keep the connections, and forget all topics and the last task's stop."""
        self.stop = stop_of_task()
        self._known = replace(self._known, topics={})

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """As of the last metadata."""
        return tuple(self._known.brokers.values())

    def metadata(self, topics: Iterable[str] | None = None, *, deadline: Deadline | None = None) -> Metadata:
        """Request metadata of these topics or of all. `leader` uses it from now on."""
        wanted = None if topics is None else sorted(set(topics))
        fresh: Metadata = self.ask_any(lambda: metadata_request(wanted), read_metadata, deadline=deadline)
        kept = {} if wanted is None else {k: v for k, v in self._known.topics.items() if k not in wanted}
        self._known = replace(fresh, topics={**kept, **fresh.topics})
        return fresh

    def topic(self, name: str, *, deadline: Deadline) -> Topic:
        """The known or newly requested metadata of a topic. UsageError if it does not exist."""
        found = self._known.topics.get(name) or self.metadata([name], deadline=deadline).topics.get(name)
        if found is None:
            raise UsageError("there is no such topic", object_name=name, hint="or this user may not Describe it")
        return found

    def leader(self, where: TopicPartition, *, deadline: Deadline) -> Leader:
        """The known or newly requested leader of a partition."""
        if where.partition not in self.topic(where.topic, deadline=deadline).partitions:
            self.forget(where.topic)  # it may have been added since
        topic = self.topic(where.topic, deadline=deadline)
        partition = topic.partitions.get(where.partition)
        if partition is None:
            raise UsageError("the topic has no such partition", object_name=str(where))
        if partition.leader is None or partition.leader not in self._known.brokers:
            self.forget(where.topic)
            raise UnavailableError("the partition has no leader now", object_name=str(where))
        return Leader(node_id=partition.leader, leader_epoch=partition.leader_epoch, topic=topic)

    def forget(self, topic: str) -> None:
        """Drop the metadata of this topic, which has proved stale."""
        topics = {name: found for name, found in self._known.topics.items() if name != topic}
        self._known = replace(self._known, topics=topics)

    def connection(self, node_id: int, *, deadline: Deadline) -> Connection:
        broker = self._known.brokers.get(node_id)
        if broker is None:
            # It led a partition in earlier metadata, and has left the cluster since.
            raise UnavailableError("the broker is not in the cluster now", object_name=f"broker {node_id}")
        return self._connected((broker.host, broker.port), deadline)

    def ask_broker(self, node_id: int, request: Message, *, deadline: Deadline) -> Message:
        """The response of this broker, within the request timeout."""
        limit = deadline.within(self.request_timeout_s)
        return self.connection(node_id, deadline=limit).ask(request, limit)

    def ask_any(
        self,
        build: Callable[[], Message],
        read: Callable[[Message], Message] | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> Message:
        """The response of the first broker that gives one. All are tried repeatedly until the deadline.

        `read` converts it: see `Connection.ask_for`.
        """
        return retry(
            lambda limit: self._ask_each(build, read, limit),
            deadline=deadline,
            what="any broker to answer",
            stop=self.stop,
        )

    def _ask_each(
        self, build: Callable[[], Message], read: Callable[[Message], Message] | None, deadline: Deadline
    ) -> Message:
        last: UnavailableError | None = None
        for address in self._candidates():
            limit = deadline.within(min(_ONE_BROKER_TIMEOUT_S, self.request_timeout_s))
            try:
                connection = self._connected(address, limit)
                return connection.ask(build(), limit) if read is None else connection.ask_for(build(), read, limit)
            except UnavailableError as error:
                self._failed_at[address] = time.monotonic()
                last = error
                self._refuse_other_protocol(address, error, deadline)
            if deadline.passed:
                break
        raise last or UnavailableError("no broker is known", object_name=self._config.bootstrap)

    def _refuse_other_protocol(self, address: tuple[str, int], error: UnavailableError, deadline: Deadline) -> None:
        """A listener that closes connections may use another protocol. Then retrying is useless."""
        if address in self._diagnosed or error.operation not in CUT_OFF:
            return
        self._diagnosed.add(address)
        mistake = protocol_mistake(*address, self._config, deadline)
        if mistake is not None:
            raise mistake from error

    def _candidates(self) -> list[tuple[str, int]]:
        """The known and the configured brokers; the one that failed last comes last."""
        known = [(broker.host, broker.port) for broker in self._known.brokers.values()]
        return sorted(dict.fromkeys([*known, *self._bootstrap]), key=lambda address: self._failed_at.get(address, 0.0))

    def _connected(self, address: tuple[str, int], deadline: Deadline) -> Connection:
        found = self._connections.get(address)
        # A connection with requests in flight finishes them, even if its login is about to expire.
        if found is not None and (found.usable or not found.idle):
            return found
        if found is not None:
            found.close()
        opened = Connection.open(*address, self._config, client_id=self._client_id, deadline=deadline)
        self._connections[address] = opened
        return opened


def retry(
    action: Callable[[Deadline], Result],
    *,
    deadline: Deadline | None,
    what: str,
    stop: threading.Event | TaskStop | None = None,
) -> Result:
    """The first success of `action` before the deadline. UnavailableError is retried, every other error raised."""
    started = time.monotonic()
    limit = deadline or Deadline.after(PATIENCE_S)
    backoff = Backoff()
    warn_at_s = _WARN_FIRST_S
    while True:
        try:
            return action(limit)
        except UnavailableError as error:
            waited_s = time.monotonic() - started
            if waited_s >= warn_at_s and not limit.passed:
                # A user may be watching a screen on which nothing moves.
                _LOG.warning("waiting for %s: %s; giving up in %.0f s", what, error, limit.remaining_s)
                warn_at_s = waited_s + _WARN_EVERY_S
            if stop is None or not stop.is_set():
                backoff.pause(limit)
            # Another try without time left would only fail with a timeout and hide this error.
            if stop is not None and stop.is_set():
                raise StoppedError(f"stopped while it waited for {what}", hint="run it again") from error
            if limit.passed:
                raise gave_up(error, what, time.monotonic() - started) from error


def gave_up(error: UnavailableError, what: str, waited_s: float) -> UnavailableError:
    return UnavailableError(
        f"waited {waited_s:.0f} s for {what}; last error: {error.message}",
        operation=error.operation,
        object_name=error.object_name,
        offset=error.offset,
        hint=error.hint or "check that the brokers run and are reachable from here, then run it again",
    )


def _addresses(bootstrap: str) -> list[tuple[str, int]]:
    addresses = []
    for address in filter(None, map(str.strip, bootstrap.split(","))):
        host, _, port = address.rpartition(":") if not address.endswith("]") and ":" in address else (address, "", "")
        if port and not port.isdigit():
            raise UsageError("a bootstrap address is not host:port", object_name=address)
        addresses.append((host.strip("[]"), int(port) if port else _DEFAULT_PORT))
    if not addresses:
        raise UsageError("kafka.bootstrap names no broker", hint="write host:port, several with commas")
    return addresses


def metadata_request(topics: Iterable[str] | None) -> Message:
    """A request for these topics, or for all that this user may see. It must never create a topic."""
    wanted = None
    if topics is not None:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(set(topics))]
    return MetadataRequest(topics=wanted, allow_auto_topic_creation=False)


def read_metadata(answer: Message) -> Metadata:
    """Convert a response of kafka-python. An error that is not retriable is raised."""
    absent = {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID}
    brokers = {
        broker.node_id: Broker(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
        for broker in answer.brokers
    }
    return Metadata(
        cluster_id=answer.cluster_id,
        controller=answer.controller_id,
        brokers=brokers,
        topics={topic.name: _topic(topic) for topic in answer.topics if topic.error_code not in absent},
    )


def _topic(topic: Message) -> Topic:
    if topic.error_code and reaction(topic.error_code) is Reaction.FATAL:
        raise answered_with(topic.error_code, operation="read metadata", object_name=topic.name)
    return Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        internal=bool(topic.is_internal),
        partitions={
            partition.partition_index: Partition(
                leader=partition.leader_id if partition.leader_id >= 0 else None,
                leader_epoch=partition.leader_epoch,
                replicas=tuple(partition.replica_nodes),
                in_sync=tuple(partition.isr_nodes),
                offline=tuple(partition.offline_replicas),
            )
            for partition in topic.partitions
        },
    )


def by_topic(values: Mapping[TopicPartition, Value]) -> dict[str, dict[int, Value]]:
    """Topic name to partition index to value, in the order given."""
    groups: dict[str, dict[int, Value]] = defaultdict(dict)
    for where, value in values.items():
        groups[where.topic][where.partition] = value
    return groups


def topic_messages(
    values: Mapping[TopicPartition, Value],
    topic: Message,
    partition: Callable[[int, Value], Message],
    name: str = "name",
) -> list[Message]:
    """A message of the class `topic` for each topic, with what `partition` makes of each of its partitions.

    `name` is the field that has the topic's name.
    """
    return [
        topic(**{name: topic_name}, partitions=[partition(index, value) for index, value in by_index.items()])
        for topic_name, by_index in by_topic(values).items()
    ]


def each_partition(topics: Iterable[Message]) -> Iterator[tuple[TopicPartition, Message]]:
    """Every partition of a response whose topics have a `name` and whose partitions have a `partition_index`."""
    for topic in topics:
        for partition in topic.partitions:
            yield TopicPartition(topic=topic.name, partition=partition.partition_index), partition


def in_requests(values: Sequence[Value], per_request: int) -> Iterator[Sequence[Value]]:
    return (values[first : first + per_request] for first in range(0, len(values), per_request))

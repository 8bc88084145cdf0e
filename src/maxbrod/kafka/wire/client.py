"""A client of one cluster: a connection to each broker that is needed, and the last metadata.

Owns connections and the choice of brokers. Callers that find stale metadata call `forget`. Requests that any broker can
answer are retried here; `offsets` and `ranges` retry those to a leader.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self, TypeVar

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.kafka.wire.connection import CUT_OFF, Connection, Message
from maxbrod.kafka.wire.deadline import Backoff, Deadline, stop_of_task
from maxbrod.kafka.wire.metadata import Metadata, Topic, metadata_request, read_metadata
from maxbrod.kafka.wire.security import protocol_mistake

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from maxbrod.config import KafkaConfig
    from maxbrod.kafka.state.cluster_state import Broker
    from maxbrod.model import TopicPartition

Result = TypeVar("Result")
REQUEST_TIMEOUT_S: Final = 30.0
PATIENCE_S: Final = 120.0
_DEFAULT_PORT: Final = 9092
_LOG: Final = logging.getLogger(__name__)
_WARN_FIRST_S: Final = 3.0
_WARN_EVERY_S: Final = 15.0
# One broker that does not answer must not use up the time of the others.
_ONE_BROKER_TIMEOUT_S: Final = 10.0


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
        self.stop = stop or stop_of_task()
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

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
        """An open connection to this broker."""
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
    stop: threading.Event | None = None,
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
            if limit.passed or (stop is not None and stop.is_set()):
                raise gave_up(error, what, time.monotonic() - started) from error


def gave_up(error: UnavailableError, what: str, waited_s: float) -> UnavailableError:
    """The last failure with what was waited for."""
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

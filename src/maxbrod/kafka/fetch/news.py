"""Waits for records: a fetch that each leader answers as soon as it has one behind the given offset.

A broker holds such a request back, so that waiting costs one request a second, and a record is known of at once. It
also holds back all later requests of that connection: `News` has connections of its own. What it hears is a hint, which
whoever is waiting checks. So nothing here fails: a broker that does not answer, or refuses, has no news.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from maxbrod.errors import CorruptDataError, UnavailableError
from maxbrod.kafka.fetch.request import FetchAnswer, PartitionFetch, by_name, fetch_request, read_answer
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.connection import Connection, wait_for_any
from maxbrod.kafka.wire.deadline import Deadline

if TYPE_CHECKING:
    from maxbrod.config import KafkaConfig

WAIT_MS: Final = 1000
"""The time after which a broker answers although it has nothing."""
_TIMEOUT_S: Final = 3.0
"""For a request or a connection: whoever waits has other things to do."""
_POLL_S: Final = 0.2
"""The time after which a stop is noticed."""
_Key = tuple[UUID, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """A place in a log: the next record that is committed will be at `offset`, or behind it."""

    topic: str
    topic_id: UUID
    partition: int
    leader: int
    offset: int


@dataclass(slots=True, kw_only=True)
class _Asked:
    """A request that a leader has not answered yet."""

    connection: Connection
    ticket: int
    names: Mapping[str, UUID] | None


class News:
    """Use it in a `with`, from one thread."""

    def __init__(self, config: KafkaConfig, *, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()
        self._client = KafkaClient(config, stop=self._stop)
        self._asked: dict[int, _Asked] = {}
        """By leader. A request stays with its broker when the waiting ends, also if offsets move on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def wait(self, places: Iterable[LogPlace], seconds: float) -> bool:
        """True as soon as one of these logs has a committed record at its offset; False after this time, or a stop."""
        until = time.monotonic() + seconds
        by_leader: dict[int, dict[_Key, LogPlace]] = defaultdict(dict)
        for place in places:
            by_leader[place.leader][place.topic_id, place.partition] = place
        silent: set[int] = set()
        """Leaders that have failed or refused: they are not asked again before the next call."""
        while not self._stop.is_set() and (rest_s := until - time.monotonic()) > 0:
            for leader, wanted in by_leader.items():
                if leader not in self._asked and leader not in silent and not self._ask(leader, wanted):
                    silent.add(leader)
            waiting = {leader: asked for leader, asked in self._asked.items() if leader in by_leader}
            if not waiting:
                time.sleep(min(rest_s, _POLL_S))
                continue
            ready = wait_for_any([asked.connection for asked in waiting.values()], min(rest_s, _POLL_S))
            for leader, asked in waiting.items():
                if asked.connection not in ready:
                    continue
                answer = self._receive(leader, asked)
                if answer is None or _is_refused(answer):
                    silent.add(leader)
                if answer is not None and _has_news(answer, by_leader[leader]):
                    return True
        return False

    def _ask(self, leader: int, wanted: Mapping[_Key, LogPlace]) -> bool:
        limit = Deadline.after(_TIMEOUT_S)
        # One byte: a broker sends the first batch whole, however small the limit, and no second one.
        partitions = (
            PartitionFetch(
                topic=place.topic, topic_id=place.topic_id, partition=place.partition, offset=place.offset, bytes_max=1
            )
            for place in wanted.values()
        )
        try:
            if leader not in {broker.node_id for broker in self._client.brokers}:
                self._client.metadata([], deadline=limit)
            connection = self._client.connection(leader, deadline=limit)
            if connection.throttled:
                return False
            request = fetch_request(partitions, bytes_max=1, wait_ms=WAIT_MS)
            ticket = connection.send(request, limit)
        except UnavailableError:
            return False
        self._asked[leader] = _Asked(connection=connection, ticket=ticket, names=by_name(request))
        return True

    def _receive(self, leader: int, asked: _Asked) -> FetchAnswer | None:
        del self._asked[leader]
        try:
            answer = read_answer(asked.connection.receive(asked.ticket, Deadline.after(_TIMEOUT_S)), asked.names)
        except (UnavailableError, CorruptDataError):
            asked.connection.close()
            return None
        asked.connection.throttle(answer.throttle_ms)
        return answer


def _has_news(answer: FetchAnswer, wanted: Mapping[_Key, LogPlace]) -> bool:
    """The request may be older than the places that are wanted now."""
    return any(
        key in wanted and not found.error_code and found.last_stable_offset > wanted[key].offset
        for key, found in answer.partitions.items()
    )


def _is_refused(answer: FetchAnswer) -> bool:
    """True if the broker answers at once, and would again: with an error, or because it throttles this client."""
    return bool(answer.throttle_ms or answer.error_code) or any(
        found.error_code for found in answer.partitions.values()
    )

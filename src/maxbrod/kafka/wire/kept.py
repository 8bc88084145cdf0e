"""Clients that stay open between tasks of one process.

A task opens its own client, which connects and logs in. A command that follows runs small tasks again and again, and
that takes longer than their work. Within `keeping_clients` the next task gets the connections of the last one, and
nothing else of it: not its metadata, and not its stop. On Spark's workers nothing is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from maxbrod.kafka.wire.client import KafkaClient

if TYPE_CHECKING:
    from maxbrod.config import KafkaConfig

_KEPT_MAX: Final = 8


class _Kept:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[KafkaConfig, KafkaClient]] = []
        self._users = 0
        """Blocks of `keeping_clients` that are under way."""

    def begin(self) -> None:
        with self._lock:
            self._users += 1

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            closing = [] if self._users else self._idle
            self._idle = self._idle if self._users else []
        for _, client in closing:
            client.close()

    def take(self, config: KafkaConfig) -> KafkaClient | None:
        with self._lock:
            found = next((kept for kept in self._idle if kept[0] == config), None)
            if found is None:
                return None
            self._idle.remove(found)
            return found[1]

    def put(self, config: KafkaConfig, client: KafkaClient) -> bool:
        with self._lock:
            kept = bool(self._users) and len(self._idle) < _KEPT_MAX and client.idle
            if kept:
                self._idle.append((config, client))
        return kept


_KEPT: Final = _Kept()


@contextmanager
def keeping_clients() -> Iterator[None]:
    """Within the block, clients of tasks in this process stay open for the next ones. Its end closes them."""
    _KEPT.begin()
    try:
        yield
    finally:
        _KEPT.end()


@contextmanager
def client_for(config: KafkaConfig) -> Iterator[KafkaClient]:
    """A client for one task. After an error it is closed, whoever keeps clients."""
    client = _KEPT.take(config)
    if client is None:
        client = KafkaClient(config)
    else:
        client.begin_anew()
    try:
        yield client
    except BaseException:
        client.close()
        raise
    if not _KEPT.put(config, client):
        client.close()

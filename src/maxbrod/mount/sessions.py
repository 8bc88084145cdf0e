"""Fetch sessions (KIP-227): a client names its partitions once, then only what changes.

A session belongs to one connection's client, holds the partitions in the order in which they were named, and
remembers what was last answered about each. Sessions that nobody uses are dropped when there are too many.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

SESSIONS_MAX: Final = 10_000
_PARTITIONS_MAX: Final = 2_000_000
"""The limit for all sessions together."""
NO_SESSION: Final = 0
FULL: Final = 0
"""The epoch of a request that opens a session."""
LAST: Final = -1
"""The epoch of a request that closes it, or wants none."""
_EPOCH_MAX: Final = 2**31 - 1


@dataclass(slots=True)
class Wanted:
    """One partition that a client fetches. `seen` is what it was last told: high watermark and log start."""

    topic: str | None
    """None: the client named an id that no topic has."""
    topic_id: UUID
    partition: int
    offset: int
    bytes_max: int
    seen: tuple[int, int] | None = None


Key = tuple[str | None, UUID, int]


@dataclass(slots=True)
class FetchSession:
    session_id: int
    epoch: int = FULL
    """That of the next request."""
    partitions: OrderedDict[Key, Wanted] = field(default_factory=OrderedDict)

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1


class FetchSessions:
    def __init__(self, *, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._sessions_max = sessions_max

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self) -> FetchSession | None:
        """A new session; None if there is no room for one."""
        if sum(len(session.partitions) for session in self._sessions.values()) > _PARTITIONS_MAX:
            return None
        while len(self._sessions) >= self._sessions_max:
            self._sessions.popitem(last=False)
        while (session_id := secrets.randbelow(_EPOCH_MAX - 1) + 1) in self._sessions:
            pass
        session = self._sessions[session_id] = FetchSession(session_id)
        return session

    def find(self, session_id: int) -> FetchSession | None:
        session = self._sessions.get(session_id)
        if session is not None:
            self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

"""The values of a consumer group: who is in it, what comes in, what goes out, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from maxbrod.kafka.wire.error_codes import Code

Ticket: TypeAlias = Any
"""What identifies a waiting request: opaque here."""

NO_GENERATION: Final = -1


class GroupState(StrEnum):
    """The states of a group, with the names that clients see."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """No such group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Bounds on what clients can make a coordinator hold, and its delays."""

    session_ms_min: int = 1_000
    session_ms_max: int = 1_800_000
    first_join_delay_ms: int = 300
    """How long the first rebalance of an empty group waits for more members, after each that joins."""
    members_max: int = 1_000
    protocols_max: int = 64
    member_bytes_max: int = 1 << 20
    group_bytes_max: int = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinEvent:
    """A request to join. `needs_id`: the client understands that it must come again with the id that it is given."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_id: bool
    may_skip: bool
    """The client understands that a leader that came back need not assign anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """The answer to a join. Only the leader gets the members."""

    code: Code
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    """The answer to a sync."""

    code: Code
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    ticket: Ticket
    reply: JoinReply | SyncReply


@dataclass(slots=True, kw_only=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    expires_ms: int
    assignment: bytes = b""
    joining: Ticket = None
    syncing: Ticket = None
    synced: bool = False
    """True if it has asked for its assignment in this generation, or cannot: it did not take part in the rebalance."""

    @property
    def waits(self) -> bool:
        return self.joining is not None or self.syncing is not None

    @property
    def held_bytes(self) -> int:
        return bytes_of(self.protocols) + len(self.assignment)

    def metadata_for(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


def bytes_of(protocols: tuple[tuple[str, bytes], ...]) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)

"""One consumer group of the classic protocol: its members, generations and rebalances. Pure.

Events come in with the time, and answers go out: `take_answers` has those of this event, whether they belong to its own
request or to one that waited. `deadline` is when `tick` must be called next. There is no clock, socket or file here.

The rules are those of Kafka's coordinator:

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──the leader syncs──▶ Stable
                          ▲                                     │                                   │
                          └──────────── a join, a leave, an expired member ─────────────────────────┘

A member that nobody follows by heartbeats expires; one whose join or sync waits here does not. Static members (those
with an instance id) keep their place while they restart, and the newest process of an instance fences the older ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from maxbrod.kafka.wire.error_codes import Code
from maxbrod.mount.members import (
    GroupAnswer,
    GroupLimits,
    GroupMember,
    GroupState,
    JoinedMember,
    JoinEvent,
    JoinReply,
    SyncReply,
    Ticket,
    bytes_of,
)

_PLACE_BYTES: Final = 512
"""What a member takes besides its metadata and assignment."""


@dataclass(slots=True, kw_only=True)
class Membership:
    """One group. `new_id` makes member ids from client or instance ids."""

    limits: GroupLimits
    new_id: Callable[[str], str]
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, GroupMember] = field(default_factory=dict)
    """In the order in which they joined."""
    instances: dict[str, str] = field(default_factory=dict)
    """GroupMember ids of static members, by instance id."""
    pending: dict[str, int] = field(default_factory=dict)
    """GroupMember ids that were given out and have not joined yet, and when each expires."""
    _answers: list[GroupAnswer] = field(default_factory=list)
    _join_by_ms: int | None = None
    """When a rebalance ends without those who have not joined."""
    _gather_until_ms: int = 0
    """Until when the first rebalance waits for more members."""
    _sync_by_ms: int | None = None
    """When members that have not asked for their assignment are removed."""

    # Events

    def join(self, event: JoinEvent, ticket: Ticket, now_ms: int) -> None:
        """The answer may come at once, or when the rebalance has ended."""
        code = self._refusal(event)
        if code is not Code.NONE:
            self._answer(ticket, JoinReply(code=code, member_id=event.member_id))
        elif not event.member_id:
            self._join_anew(event, ticket, now_ms)
        else:
            self._join_again(event, ticket, now_ms)
        self._complete_if_ready(now_ms)

    def sync(
        self,
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Mapping[str, bytes],
        ticket: Ticket,
        now_ms: int,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> None:
        """The answer comes when the leader has sent the assignments, which may be at once."""
        code = self._check(member_id, instance_id, generation)
        if code is Code.NONE and (
            (protocol_type is not None and protocol_type != self.protocol_type)
            or (protocol is not None and protocol != self.protocol)
        ):
            code = Code.INCONSISTENT_GROUP_PROTOCOL
        if code is Code.NONE and self.state is GroupState.PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        by_leader = code is Code.NONE and self.state is GroupState.COMPLETING and member_id == self.leader
        if by_leader and sum(map(len, assignments.values())) > self.limits.group_bytes_max:
            code = Code.INVALID_REQUEST
        if code is not Code.NONE:
            self._answer(ticket, SyncReply(code=code))
            return
        member = self.members[member_id]
        member.synced = True
        self._keep_alive(member, now_ms)
        self._supersede(member, Code.REBALANCE_IN_PROGRESS)
        member.syncing = ticket
        if by_leader:
            for other in self.members.values():
                # Whoever the leader gave nothing has an empty assignment, and must hear so.
                other.assignment = assignments.get(other.member_id, b"")
            self.state = GroupState.STABLE
        if self.state is GroupState.STABLE:
            self._hand_out(now_ms)

    def heartbeat(self, *, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Code:
        code = self._check(member_id, instance_id, generation)
        if code is Code.NONE:
            self._keep_alive(self.members[member_id], now_ms)
            if self.state is GroupState.PREPARING:
                return Code.REBALANCE_IN_PROGRESS
        return code

    def leave(self, *, member_id: str, instance_id: str | None, now_ms: int) -> Code:
        """A static member can be removed by its instance id alone, as administrators do."""
        if instance_id is not None:
            known = self.instances.get(instance_id)
            if known is None:
                return Code.UNKNOWN_MEMBER_ID
            if member_id and member_id != known:
                return Code.FENCED_INSTANCE_ID
            member_id = known
        elif self.pending.pop(member_id, None) is not None:
            self._complete_if_ready(now_ms)
            return Code.NONE
        if member_id not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        self._remove(member_id, now_ms)
        self._complete_if_ready(now_ms)
        return Code.NONE

    def check_commit(self, *, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Code:
        """Whether this sender may commit offsets now. Without members anybody may who claims no generation."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return Code.NONE
        if generation < 0 and not member_id and instance_id is None:
            return Code.UNKNOWN_MEMBER_ID
        code = self._check(member_id, instance_id, generation)
        if code is not Code.NONE:
            return code
        self._keep_alive(self.members[member_id], now_ms)
        return Code.REBALANCE_IN_PROGRESS if self.state is GroupState.COMPLETING else Code.NONE

    def tick(self, now_ms: int) -> None:
        """Expire what is due."""
        for member_id in [member_id for member_id, at_ms in self.pending.items() if at_ms <= now_ms]:
            del self.pending[member_id]
        for member in list(self.members.values()):
            if not member.waits and member.expires_ms <= now_ms:
                self._remove(member.member_id, now_ms)
        if self._sync_by_ms is not None and self._sync_by_ms <= now_ms:
            self._sync_by_ms = None
            for member in list(self.members.values()):
                if not member.synced:
                    self._remove(member.member_id, now_ms)
        self._complete_if_ready(now_ms)

    def take_answers(self) -> list[GroupAnswer]:
        answers, self._answers = self._answers, []
        return answers

    # What others ask

    @property
    def deadline(self) -> int | None:
        """When `tick` has something to do; None: nothing is awaited."""
        times = [member.expires_ms for member in self.members.values() if not member.waits]
        times += self.pending.values()
        if self._sync_by_ms is not None:
            times.append(self._sync_by_ms)
        if self._join_by_ms is not None:
            times.append(min(self._gather_until_ms, self._join_by_ms) if self._all_joined else self._join_by_ms)
        return min(times, default=None)

    @property
    def unused(self) -> bool:
        """True if nobody is or is about to be a member."""
        return self.state is GroupState.EMPTY and not self.pending

    @property
    def held_bytes(self) -> int:
        """What clients make the process hold, roughly."""
        return _PLACE_BYTES * len(self.pending) + sum(
            _PLACE_BYTES + member.held_bytes for member in self.members.values()
        )

    # Joins

    def _refusal(self, event: JoinEvent) -> Code:
        limits = self.limits
        if not limits.session_ms_min <= event.session_ms <= limits.session_ms_max:
            return Code.INVALID_SESSION_TIMEOUT
        if bytes_of(event.protocols) > limits.member_bytes_max or len(event.protocols) > limits.protocols_max:
            return Code.INVALID_REQUEST
        known = self._member_of(event)
        # A member that was given an id has its place already.
        places = len(self.members) + len(self.pending)
        if known is None and event.member_id not in self.pending and places >= limits.members_max:
            return Code.GROUP_MAX_SIZE_REACHED
        held = self.held_bytes - (0 if known is None else known.held_bytes)
        if held + bytes_of(event.protocols) > limits.group_bytes_max:
            return Code.GROUP_MAX_SIZE_REACHED
        return Code.NONE if self._has_common_protocol(event, known) else Code.INCONSISTENT_GROUP_PROTOCOL

    def _member_of(self, event: JoinEvent) -> GroupMember | None:
        """The member that this event is about, or whose place it takes."""
        static = self.instances.get(event.instance_id) if event.instance_id is not None else None
        return self.members.get(static or event.member_id)

    def _has_common_protocol(self, event: JoinEvent, known: GroupMember | None) -> bool:
        if not event.protocol_type or not event.protocols:
            return False
        others = [member for member in self.members.values() if member is not known]
        names = {name for name, _ in event.protocols}
        return not others or (event.protocol_type == self.protocol_type and bool(_common_protocols(others) & names))

    def _join_anew(self, event: JoinEvent, ticket: Ticket, now_ms: int) -> None:
        if event.instance_id is not None:
            known = self.instances.get(event.instance_id)
            member_id = self.new_id(event.instance_id)
            if known is None:
                self._add(member_id, event, ticket, now_ms)
            else:
                self._replace_static(self.members[known], member_id, event, ticket, now_ms)
            return
        member_id = self.new_id(event.client_id)
        if event.needs_id:
            # The id first: a client that sends its join twice must not become two members, one of them a ghost.
            self.pending[member_id] = now_ms + event.session_ms
            self._answer(ticket, JoinReply(code=Code.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add(member_id, event, ticket, now_ms)

    def _join_again(self, event: JoinEvent, ticket: Ticket, now_ms: int) -> None:
        if event.instance_id is None and event.member_id in self.pending:
            del self.pending[event.member_id]
            self._add(event.member_id, event, ticket, now_ms)
            return
        code = self._check_member(event.member_id, event.instance_id)
        if code is not Code.NONE:
            self._answer(ticket, JoinReply(code=code, member_id=event.member_id))
            return
        member = self.members[event.member_id]
        same = member.protocols == event.protocols
        leads = member.member_id == self.leader
        # A member whose answer was lost gets it again. A leader that joins a stable group wants a new assignment.
        if same and (self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and not leads)):
            self._keep_alive(member, now_ms)
            self._answer(ticket, self._joined(member))
            return
        self._update(member, event, ticket)
        self._prepare(now_ms)

    def _add(self, member_id: str, event: JoinEvent, ticket: Ticket, now_ms: int) -> None:
        self.members[member_id] = GroupMember(
            member_id=member_id,
            instance_id=event.instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            session_ms=event.session_ms,
            rebalance_ms=event.rebalance_ms,
            protocols=event.protocols,
            expires_ms=now_ms + event.session_ms,
            joining=ticket,
        )
        if event.instance_id is not None:
            self.instances[event.instance_id] = member_id
        self.leader = self.leader or member_id
        self.protocol_type = event.protocol_type
        self._prepare(now_ms)
        if now_ms < self._gather_until_ms:
            self._gather_until_ms = now_ms + self.limits.first_join_delay_ms

    def _replace_static(
        self, member: GroupMember, member_id: str, event: JoinEvent, ticket: Ticket, now_ms: int
    ) -> None:
        """A new process of a static member takes its place, assignment included. The old process is fenced."""
        former, led = member.member_id, member.member_id == self.leader
        self._supersede(member, Code.FENCED_INSTANCE_ID)
        self.members = {member_id if known == former else known: other for known, other in self.members.items()}
        member.member_id = member_id
        member.client_id, member.client_host = event.client_id, event.client_host
        self.instances[event.instance_id or ""] = member_id
        if led:
            self.leader = member_id
        self._update(member, event, ticket)
        self._keep_alive(member, now_ms)
        if self.state is GroupState.STABLE and self._select_protocol() == self.protocol:
            member.joining = None
            if led and not event.may_skip:
                # An old client that hears that it leads would assign anew: it hears of a leader that is no more.
                self._answer(ticket, self._joined(member, leader=former))
            else:
                self._answer(ticket, self._joined(member, skip=led))
        else:
            self._prepare(now_ms)

    def _update(self, member: GroupMember, event: JoinEvent, ticket: Ticket) -> None:
        self._supersede(member, Code.REBALANCE_IN_PROGRESS)
        member.protocols = event.protocols
        member.session_ms, member.rebalance_ms = event.session_ms, event.rebalance_ms
        member.joining = ticket
        self.protocol_type = event.protocol_type

    # Rebalances

    def _prepare(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING:
            return
        for member in self.members.values():
            if member.syncing is not None:
                self._answer(member.syncing, SyncReply(code=Code.REBALANCE_IN_PROGRESS))
                member.syncing = None
                self._keep_alive(member, now_ms)
        first = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING
        self._sync_by_ms = None
        self._gather_until_ms = now_ms + (self.limits.first_join_delay_ms if first else 0)
        self._join_by_ms = now_ms + self._rebalance_ms

    @property
    def _rebalance_ms(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    @property
    def _all_joined(self) -> bool:
        return not self.pending and all(member.joining is not None for member in self.members.values())

    def _complete_if_ready(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING or self._join_by_ms is None:
            return
        late = self._join_by_ms <= now_ms or not self.members
        if not late and not (self._all_joined and self._gather_until_ms <= now_ms):
            return
        for member in list(self.members.values()):
            # A static member keeps its place until its session ends: it may be restarting.
            if member.joining is None and member.instance_id is None:
                self._remove(member.member_id, now_ms)
        joined = [member for member in self.members.values() if member.joining is not None]
        if self.members and not joined:
            self._join_by_ms = now_ms + self._rebalance_ms
            return
        self._join_by_ms = None
        self.generation = self.generation + 1 if self.generation < 2**31 - 1 else 1
        if not self.members:
            self.state, self.protocol, self.leader = GroupState.EMPTY, None, None
            return
        self._begin_generation(joined, now_ms)

    def _begin_generation(self, joined: list[GroupMember], now_ms: int) -> None:
        self.state = GroupState.COMPLETING
        self.protocol = self._select_protocol()
        if self.leader is None or self.members[self.leader].joining is None:
            self.leader = joined[0].member_id
        self._sync_by_ms = now_ms + self._rebalance_ms
        for member in self.members.values():
            member.assignment, member.synced = b"", member.joining is None
        for member in joined:
            ticket, member.joining = member.joining, None
            self._keep_alive(member, now_ms)
            self._answer(ticket, self._joined(member))

    def _select_protocol(self) -> str:
        """The protocol that most members prefer, of those that all of them know."""
        common = _common_protocols(self.members.values())
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _joined(self, member: GroupMember, *, leader: str | None = None, skip: bool = False) -> JoinReply:
        leader = leader or self.leader or ""
        members = self.members.values() if member.member_id == leader else ()
        return JoinReply(
            code=Code.NONE,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader,
            members=tuple(
                JoinedMember(
                    member_id=other.member_id,
                    instance_id=other.instance_id,
                    metadata=other.metadata_for(self.protocol),
                )
                for other in members
            ),
            skip_assignment=skip,
        )

    def _hand_out(self, now_ms: int) -> None:
        for member in self.members.values():
            if member.syncing is None:
                continue
            ticket, member.syncing = member.syncing, None
            self._keep_alive(member, now_ms)
            reply = SyncReply(
                code=Code.NONE,
                protocol_type=self.protocol_type,
                protocol=self.protocol,
                assignment=member.assignment,
            )
            self._answer(ticket, reply)
        if all(member.synced for member in self.members.values()):
            self._sync_by_ms = None

    # Members

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> Code:
        code = self._check_member(member_id, instance_id)
        return Code.ILLEGAL_GENERATION if code is Code.NONE and generation != self.generation else code

    def _check_member(self, member_id: str, instance_id: str | None) -> Code:
        if instance_id is not None:
            known = self.instances.get(instance_id)
            if known is not None and known != member_id:
                return Code.FENCED_INSTANCE_ID
            if known is None:
                return Code.UNKNOWN_MEMBER_ID
        return Code.NONE if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    def _remove(self, member_id: str, now_ms: int) -> None:
        member = self.members.pop(member_id)
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        self._supersede(member, Code.UNKNOWN_MEMBER_ID)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        if self.state in {GroupState.STABLE, GroupState.COMPLETING}:
            self._prepare(now_ms)

    def _supersede(self, member: GroupMember, code: Code) -> None:
        """Answer the requests of a member that wait, because another one takes their place or none will be answered."""
        if member.joining is not None:
            self._answer(member.joining, JoinReply(code=code, member_id=member.member_id))
        if member.syncing is not None:
            self._answer(member.syncing, SyncReply(code=code))
        member.joining = member.syncing = None

    @staticmethod
    def _keep_alive(member: GroupMember, now_ms: int) -> None:
        member.expires_ms = now_ms + member.session_ms

    def _answer(self, ticket: Ticket, reply: JoinReply | SyncReply) -> None:
        self._answers.append(GroupAnswer(ticket, reply))


def _common_protocols(members: Collection[GroupMember]) -> set[str]:
    return set.intersection(*({name for name, _ in member.protocols} for member in members))

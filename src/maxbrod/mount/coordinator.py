"""The coordinator of consumer groups: a thin shell that gives requests to `membership` and waits for its answers.

One coordinator serves a mount, in one event loop. It owns the groups that have members, their timers, and the bounds on
both. Offsets are in `group_offsets`.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import uuid4

from kafka.protocol.admin import DeleteGroupsResponse, DescribeGroupsResponse, ListGroupsResponse
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import HeartbeatResponse, JoinGroupResponse, LeaveGroupResponse, SyncGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.kafka.wire.messages import message_pair
from maxbrod.mount.group_offsets import GroupOffsets
from maxbrod.mount.journal import CommitJournal
from maxbrod.mount.members import GroupLimits, GroupMember, GroupState, JoinEvent, JoinReply, SyncReply
from maxbrod.mount.membership import Membership
from maxbrod.mount.positions import PROTOCOL_TYPE, Positions

ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse = message_pair("ConsumerGroupDescribe")

KEYS: Final[Mapping[int, tuple[int, int]]] = {
    ApiKey.OffsetCommit: (0, 9),
    ApiKey.OffsetFetch: (0, 9),
    ApiKey.JoinGroup: (0, 9),
    ApiKey.Heartbeat: (0, 4),
    ApiKey.LeaveGroup: (0, 5),
    ApiKey.SyncGroup: (0, 5),
    ApiKey.DescribeGroups: (0, 6),
    ApiKey.ListGroups: (0, 5),
    ApiKey.DeleteGroups: (0, 2),
    ApiKey.OffsetDelete: (0, 0),
    ApiKey.ConsumerGroupDescribe: (0, 1),
}
"""The requests that `Coordinator.handle` answers, and their versions."""
KEYS_BY_ID: Final[Mapping[int, tuple[int, int]]] = {ApiKey.OffsetCommit: (0, 10), ApiKey.OffsetFetch: (0, 10)}
"""The same where topics have ids: from version 10 on, these requests have no names."""

_GROUPS_MAX: Final = 10_000
_BYTES_MAX: Final = 512 << 20
"""What all groups together may hold of their members' metadata."""
_GROUP_TYPE: Final = "classic"
_READ_AND_DESCRIBE: Final = {3, 8}
"""What a client may do with a group, as the bits of DescribeGroups have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who sent a request."""

    client_id: str
    host: str
    principal: str


class Coordinator:
    """All groups of a mount. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        *,
        positions: Positions,
        journal: CommitJournal,
        clock: Callable[[], float] = time.monotonic,
        limits: GroupLimits | None = None,
    ) -> None:
        self.offsets = GroupOffsets(positions, journal)
        self._journal, self._clock, self._limits = journal, clock, limits or GroupLimits()
        self._groups: dict[str, Membership] = {}
        self._timers: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        self._held: dict[str, int] = {}
        self._bytes = 0
        self._at_once: Final[Mapping[int, Callable[[Message, int], Message]]] = {
            ApiKey.ConsumerGroupDescribe: _not_of_the_newer_protocol,
            ApiKey.DeleteGroups: self._refuse_deletion,
            ApiKey.DescribeGroups: self._describe,
            ApiKey.Heartbeat: self._heartbeat,
            ApiKey.LeaveGroup: self._leave,
            ApiKey.ListGroups: self._list,
            ApiKey.OffsetFetch: self.offsets.fetch,
        }
        self._later: Final[Mapping[int, Callable[[Message, int, Client], Awaitable[Message]]]] = {
            ApiKey.JoinGroup: self._join,
            ApiKey.OffsetCommit: self._commit,
            ApiKey.OffsetDelete: self._delete,
            ApiKey.SyncGroup: self._sync,
        }

    async def handle(self, request: Message, version: int, client: Client) -> Message:
        """The answer to a request of one of `KEYS`."""
        at_once, later = self._at_once.get(request.API_KEY), self._later.get(request.API_KEY)
        if at_once is not None:
            return at_once(request, version)
        if later is not None:
            return await later(request, version, client)
        raise ValueError(f"the coordinator does not answer requests of key {request.API_KEY}")

    def close(self) -> None:
        """Stop the timers. Requests that wait are not answered: their clients find the next coordinator."""
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # Members

    async def _join(self, request: Message, version: int, client: Client) -> Message:
        event = JoinEvent(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=client.client_id,
            client_host=client.host,
            session_ms=request.session_timeout_ms,
            # Before version 1 there is only one timeout.
            rebalance_ms=request.rebalance_timeout_ms
            if request.rebalance_timeout_ms >= 0
            else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
            needs_id=version >= 4,
            may_skip=version >= 9,
        )
        if not request.group_id:
            return _join_response(JoinReply(code=Code.INVALID_GROUP_ID), version)
        if self._is_full(request.group_id):
            return _join_response(JoinReply(code=Code.GROUP_MAX_SIZE_REACHED, member_id=request.member_id), version)
        answer: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
        group = self._group(request.group_id)
        group.join(event, answer, self._now_ms())
        self._settle(request.group_id, group)
        return _join_response(await answer, version)

    async def _sync(self, request: Message, version: int, _: Client) -> Message:
        answer: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
        group = self._group(request.group_id)
        group.sync(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments={assignment.member_id: bytes(assignment.assignment) for assignment in request.assignments},
            ticket=answer,
            now_ms=self._now_ms(),
        )
        self._settle(request.group_id, group)
        reply = await answer
        return SyncGroupResponse(
            version=version,
            error_code=reply.code,
            protocol_type=reply.protocol_type,
            protocol_name=reply.protocol,
            assignment=reply.assignment,
        )

    def _heartbeat(self, request: Message, version: int) -> Message:
        group = self._group(request.group_id)
        code = group.heartbeat(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            now_ms=self._now_ms(),
        )
        self._settle(request.group_id, group)
        return HeartbeatResponse(version=version, error_code=code)

    def _leave(self, request: Message, version: int) -> Message:
        group, now_ms = self._group(request.group_id), self._now_ms()
        response = LeaveGroupResponse
        if version < 3:
            code = group.leave(member_id=request.member_id, instance_id=None, now_ms=now_ms)
            self._settle(request.group_id, group)
            return response(version=version, error_code=code)
        members = [
            response.MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=group.leave(member_id=member.member_id, instance_id=member.group_instance_id, now_ms=now_ms),
            )
            for member in request.members
        ]
        self._settle(request.group_id, group)
        return response(version=version, error_code=Code.NONE, members=members)

    async def _commit(self, request: Message, version: int, _: Client) -> Message:
        return await self.offsets.commit(request, version, self._check_commit(request))

    async def _delete(self, request: Message, version: int, _: Client) -> Message:
        return await self.offsets.delete(request, version, partial(self._in_use, request.group_id))

    def _check_commit(self, request: Message) -> Code:
        if not request.group_id and request.generation_id_or_member_epoch >= 0:
            return Code.INVALID_GROUP_ID
        group = self._group(request.group_id)
        code = group.check_commit(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
            now_ms=self._now_ms(),
        )
        self._settle(request.group_id, group)
        return code

    def _in_use(self, group_id: str, topic: str) -> Code:
        """Why the offsets of a topic cannot be deleted."""
        group = self._groups.get(group_id)
        if group is None or not group.members:
            return Code.NONE
        if group.protocol_type != PROTOCOL_TYPE:
            return Code.NON_EMPTY_GROUP
        subscribed = any(_subscribes(member, group.protocol, topic) for member in group.members.values())
        return Code.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else Code.NONE

    # What there is

    def _describe(self, request: Message, version: int) -> Message:
        response = DescribeGroupsResponse
        operations = _READ_AND_DESCRIBE if request.include_authorized_operations else None
        groups = []
        for group_id in request.groups:
            group = self._groups.get(group_id)
            there = group is not None or self.offsets.knows(group_id)
            groups.append(
                response.DescribedGroup(
                    error_code=Code.NONE if there or version < 6 else Code.GROUP_ID_NOT_FOUND,
                    error_message=None if there else f"the mount has no group {group_id}",
                    group_id=group_id,
                    group_state=str(self._state(group_id) if there else GroupState.DEAD),
                    protocol_type=self._protocol_type(group_id) if there else "",
                    protocol_data="" if group is None else group.protocol or "",
                    members=[] if group is None else [_described(member, group) for member in group.members.values()],
                    authorized_operations=operations if there else None,
                )
            )
        return response(version=version, groups=groups)

    def _list(self, request: Message, version: int) -> Message:
        states = {state.lower() for state in request.states_filter or ()}
        types = {kind.lower() for kind in request.types_filter or ()}
        response = ListGroupsResponse
        known = sorted({*self._groups, *self.offsets.group_ids})
        return response(
            version=version,
            error_code=Code.NONE,
            groups=[
                response.ListedGroup(
                    group_id=group_id,
                    protocol_type=self._protocol_type(group_id),
                    group_state=str(self._state(group_id)),
                    group_type=_GROUP_TYPE,
                )
                for group_id in known
                if (not states or self._state(group_id).lower() in states) and (not types or _GROUP_TYPE in types)
            ],
        )

    def _refuse_deletion(self, request: Message, version: int) -> Message:
        """The archive's groups cannot be deleted here, so none can: the mount is read-only but for positions."""
        response = DeleteGroupsResponse
        return response(
            version=version,
            results=[
                response.DeletableGroupResult(
                    group_id=group_id,
                    error_code=Code.POLICY_VIOLATION
                    if group_id in self._groups or self.offsets.knows(group_id)
                    else Code.GROUP_ID_NOT_FOUND,
                )
                for group_id in request.groups_names
            ],
        )

    def _state(self, group_id: str) -> GroupState:
        group = self._groups.get(group_id)
        return GroupState.EMPTY if group is None else group.state

    def _protocol_type(self, group_id: str) -> str:
        group = self._groups.get(group_id)
        return (group and group.protocol_type) or self.offsets.protocol_type(group_id)

    # Groups and their timers

    def _group(self, group_id: str) -> Membership:
        """A group that has no members yet is kept only if this request makes it have some."""
        return self._groups.get(group_id) or Membership(limits=self._limits, new_id=_new_member_id)

    def _is_full(self, group_id: str) -> bool:
        return (group_id not in self._groups and len(self._groups) >= _GROUPS_MAX) or self._bytes > _BYTES_MAX

    def _settle(self, group_id: str, group: Membership) -> None:
        """After an event: pass on answers, keep or forget the group, set its timer."""
        for answer in group.take_answers():
            # A client that has gone does not wait any more.
            if not answer.ticket.done():
                answer.ticket.set_result(answer.reply)
        held = group.held_bytes
        self._bytes += held - self._held.pop(group_id, 0)
        was_there = group_id in self._groups
        if group.unused:
            self._groups.pop(group_id, None)
        else:
            self._groups[group_id], self._held[group_id] = group, held
        if was_there == group.unused:
            self._journal.mark(group_id, members=not group.unused)
        self._set_timer(group_id, group.deadline)

    def _set_timer(self, group_id: str, deadline_ms: int | None) -> None:
        """A timer that comes too early finds nothing to do, so heartbeats need not set it again."""
        at_ms, timer = self._timers.get(group_id, (None, None))
        if deadline_ms is not None and at_ms is not None and at_ms <= deadline_ms:
            return
        if timer is not None:
            timer.cancel()
            del self._timers[group_id]
        if deadline_ms is not None:
            delay_s = max(0.0, deadline_ms / 1000 - self._clock())
            handle = asyncio.get_running_loop().call_later(delay_s, self._tick, group_id)
            self._timers[group_id] = (deadline_ms, handle)

    def _tick(self, group_id: str) -> None:
        self._timers.pop(group_id, None)
        group = self._groups.get(group_id)
        if group is not None:
            group.tick(self._now_ms())
            self._settle(group_id, group)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _new_member_id(prefix: str) -> str:
    """Unguessable: whoever knows a member's id can speak for it."""
    return f"{prefix[:200]}-{uuid4()}"


def _join_response(reply: JoinReply, version: int) -> Message:
    response = JoinGroupResponse
    return response(
        version=version,
        error_code=reply.code,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol if version >= 7 else reply.protocol or "",
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            response.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in reply.members
        ],
    )


def _described(member: GroupMember, group: Membership) -> Message:
    stable = group.state is GroupState.STABLE
    return DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata_for(group.protocol) if stable else b"",
        member_assignment=member.assignment if stable else b"",
    )


def _subscribes(member: GroupMember, protocol: str | None, topic: str) -> bool:
    try:
        found = ConsumerProtocolSubscription.decode(member.metadata_for(protocol))
    except (struct.error, ValueError, IndexError, KeyError, TypeError):
        # Who knows what it reads.
        return True
    return topic in found.topics


def _not_of_the_newer_protocol(request: Message, version: int) -> Message:
    """Admin clients ask for the classic description then."""
    response = ConsumerGroupDescribeResponse
    return response(
        version=version,
        groups=[
            response.DescribedGroup(
                error_code=Code.GROUP_ID_NOT_FOUND,
                error_message=f"group {group_id} is not of the consumer protocol",
                group_id=group_id,
                group_state="",
                group_epoch=0,
                assignment_epoch=0,
                assignor_name="",
                members=[],
            )
            for group_id in request.group_ids
        ],
    )

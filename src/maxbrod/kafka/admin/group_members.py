"""Removes the members of a group, so that it accepts offsets. They rejoin by themselves.

Kafka allows this for groups of the classic protocol. A removed member notices at its next heartbeat, joins again, and
resumes at the offsets that the group has then. Members of the newer protocols can only leave by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import LeaveGroupRequest

from maxbrod.errors import UnavailableError
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.coordination import GROUP, find_coordinator
from maxbrod.kafka.wire.error_codes import Code, answered_with

if TYPE_CHECKING:
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline

_OPERATION: Final = "remove the members of a group"
_REASON: Final = "maxbrod moves the group"


def remove_members(client: KafkaClient, group_id: str, *, deadline: Deadline | None = None) -> int:
    """Remove all members and return their number: 0 for a group of another protocol or one that does not exist."""

    def once(limit: Deadline) -> int:
        node_id = find_coordinator(client, group_id, GROUP, deadline=limit)
        members = _members(client, node_id, group_id, limit)
        if members:
            answer = client.ask_broker(node_id, _leave(group_id, members), deadline=limit)
            for code in (answer.error_code, *(member.error_code for member in answer.members)):
                # It has left by itself in the meantime.
                if code and code != Code.UNKNOWN_MEMBER_ID:
                    raise answered_with(code, operation=_OPERATION, object_name=group_id)
        return len(members)

    return retry(once, deadline=deadline, what=f"the coordinator of the group {group_id}", stop=client.stop)


def _members(client: KafkaClient, node_id: int, group_id: str, deadline: Deadline) -> list[tuple[str, str | None]]:
    request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False)
    (found,) = client.ask_broker(node_id, request, deadline=deadline).groups
    if found.error_code:
        raise answered_with(found.error_code, operation=_OPERATION, object_name=group_id)
    if not found.members and found.group_state == "PreparingRebalance":
        raise UnavailableError("members are joining", operation=_OPERATION, object_name=group_id)
    return [(member.member_id, member.group_instance_id) for member in found.members]


def _leave(group_id: str, members: list[tuple[str, str | None]]) -> Message:
    identity = LeaveGroupRequest.MemberIdentity
    leaving = [
        identity(member_id=member_id, group_instance_id=instance_id, reason=_REASON)
        for member_id, instance_id in members
    ]
    return LeaveGroupRequest(group_id=group_id, member_id="", members=leaving)

"""Finds the one broker that coordinates a group or a transactional id. For many groups at once: `coordinators`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.protocol.metadata import FindCoordinatorRequest

from maxbrod.errors import UsageError
from maxbrod.kafka.wire.error_codes import Code, answered_with, code_name

if TYPE_CHECKING:
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.deadline import Deadline

GROUP: Final = 0
TRANSACTION: Final = 1
_DENIED: Final[dict[int, str]] = {
    Code.GROUP_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Read the group",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Write the transactional id",
}


def find_coordinator(client: KafkaClient, key: str, kind: int, *, deadline: Deadline) -> int:
    """The broker's id. UnavailableError while there is none; UsageError where this user may not know."""
    code, node_id = ask_for_coordinator(client, key, kind, deadline=deadline)
    operation = "find a coordinator"
    if code in _DENIED:
        message = f"the broker answered {code_name(code)}"
        raise UsageError(message, operation=operation, object_name=key, hint=_DENIED[code])
    if code:
        raise answered_with(code, operation=operation, object_name=key)
    return node_id


def ask_for_coordinator(client: KafkaClient, key: str, kind: int, *, deadline: Deadline) -> tuple[int, int]:
    """The error code that was answered, and the broker's id if it is 0."""
    answer = client.ask_any(lambda: FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), deadline=deadline)
    (found,) = answer.coordinators
    client.metadata([], deadline=deadline)  # it may be a broker that was not there before
    return int(found.error_code), int(found.node_id)

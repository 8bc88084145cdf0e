"""Finds the one broker that coordinates a group or a transactional id. For many groups at once: `coordinators`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.protocol.metadata import FindCoordinatorRequest

from maxbrod.errors import UsageError
from maxbrod.kafka.error_codes import Code, answered_with, code_name

if TYPE_CHECKING:
    from maxbrod.kafka.client import KafkaClient
    from maxbrod.kafka.deadline import Deadline

GROUP: Final = 0
TRANSACTION: Final = 1
_DENIED: Final[dict[int, str]] = {
    Code.GROUP_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Read the group",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Write the transactional id",
}


def find_coordinator(client: KafkaClient, key: str, kind: int, *, deadline: Deadline) -> int:
    """The broker's id. UnavailableError while there is none; UsageError where this user may not know."""
    answer = client.ask_any(lambda: FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), deadline=deadline)
    (found,) = answer.coordinators
    operation = "find a coordinator"
    if found.error_code in _DENIED:
        message = f"the broker answered {code_name(found.error_code)}"
        raise UsageError(message, operation=operation, object_name=key, hint=_DENIED[found.error_code])
    if found.error_code:
        raise answered_with(found.error_code, operation=operation, object_name=key)
    client.metadata([], deadline=deadline)  # it may be a broker that was not there before
    return int(found.node_id)

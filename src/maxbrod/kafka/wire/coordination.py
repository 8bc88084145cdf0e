"""Finds the coordinators of groups and transactional ids, and sends requests to them.

For many at once, failures are returned beside the results, and requests are repeated if a coordinator moves or does
not answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from kafka.protocol.metadata import FindCoordinatorRequest

from maxbrod.errors import MaxbrodError, UnavailableError, UnsupportedFormatError, UsageError
from maxbrod.kafka.wire.client import KafkaClient, in_requests, retry
from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, Reaction, answered_with, code_name, reaction
from maxbrod.kafka.wire.messages import message_pair

Found = TypeVar("Found")
_GROUPS_PER_REQUEST: Final = 200
_FIND_ONE: Final = 3  # the last version with one key
GROUP: Final = 0
TRANSACTION: Final = 1
_WAYS_OUT: Final[dict[int, str]] = {
    Code.CLUSTER_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Write to the topic",
    Code.GROUP_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Read the group",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Write the transactional id",
    Code.TOPIC_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Write to the topic",
    Code.INVALID_TRANSACTION_TIMEOUT: "the brokers allow no more than their transaction.max.timeout.ms",
}


def find_coordinator(client: KafkaClient, key: str, kind: int, *, deadline: Deadline) -> int:
    """The id of the coordinator. UnavailableError while there is none; UsageError if this user is not authorized."""
    code, node_id = ask_for_coordinator(client, key, kind, deadline=deadline)
    if code:
        raise refused_with(code, operation="find a coordinator", object_name=key)
    return node_id


def refused_with(code: int, *, operation: str, object_name: str) -> MaxbrodError:
    """The error for the code of a group, a producer or a transaction. UsageError: this user may not do it."""
    if code not in _WAYS_OUT:
        return answered_with(code, operation=operation, object_name=object_name)
    message = f"the broker answered {code_name(code)}"
    return UsageError(message, operation=operation, object_name=object_name, hint=_WAYS_OUT[code])


def ask_for_coordinator(client: KafkaClient, key: str, kind: int, *, deadline: Deadline) -> tuple[int, int]:
    """The error code, and the id of the coordinator if the code is 0."""
    answer = client.ask_any(partial(_find_request, kind, [key]), deadline=deadline)
    (found,) = answer.coordinators
    client.metadata([], deadline=deadline)  # it may be a new broker
    return int(found.error_code), int(found.node_id)


def _find_request(kind: int, keys: Sequence[str]) -> Message:
    return FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))


class Answers(Generic[Found]):
    """The results by group, and the reasons for groups without one."""

    def __init__(self) -> None:
        self.found: dict[str, Found] = {}
        self.refused: dict[str, str] = {}

    def missing(self, group_ids: Iterable[str]) -> list[str]:
        return [group_id for group_id in group_ids if group_id not in self.found and group_id not in self.refused]

    def refuse(self, group_id: str, code: int) -> None:
        """Record an error. With a retriable one the group stays missing and is requested again."""
        if reaction(code) is Reaction.FATAL:
            self.refused[group_id] = code_name(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderForm(Generic[Found]):
    """The same request for one group, in a version that brokers before Kafka 3.0 support."""

    request: Callable[[str], Message]
    read: Callable[[str, Message], tuple[str, int, Found]]
    """Returns the group, its error code and its result."""


def ask_coordinators(
    client: KafkaClient,
    group_ids: Iterable[str],
    request: Callable[[Sequence[str]], Message],
    read: Callable[[Message], Iterable[tuple[str, int, Found]]],
    *,
    deadline: Deadline,
    kind: int = GROUP,
    older: OlderForm[Found] | None = None,
) -> Answers[Found]:
    """Send one request for each coordinator and 200 groups. `read` yields the error code and the result of each group.

    With the kind TRANSACTION, the ids are transactional ids. Brokers that do not support requests for many groups are
    asked for one after the other in the `older` form, if there is one.
    """
    wanted = sorted(group_ids)
    answers: Answers[Found] = Answers()

    def once(limit: Deadline) -> None:
        failure = UnavailableError("a coordinator is moving or loading")
        client.metadata([], deadline=limit)  # a coordinator may be a new broker
        for node_id, portion in _by_coordinator(client, answers, answers.missing(wanted), kind, limit):
            try:
                told = _ask(client, node_id, portion, request, read, older, limit)
            except UnavailableError as error:
                failure = error
                continue
            for group_id, code, found in told:
                if code:
                    answers.refuse(group_id, code)
                else:
                    answers.found[group_id] = found
        if answers.missing(wanted):
            raise failure

    try:
        if wanted:
            what = f"the coordinators of {len(wanted)} {'groups' if kind == GROUP else 'transactional ids'}"
            retry(once, deadline=deadline, what=what, stop=client.stop)
    except MaxbrodError as error:
        answers.refused |= dict.fromkeys(answers.missing(wanted), str(error))
    return answers


def _ask(
    client: KafkaClient,
    node_id: int,
    portion: Sequence[str],
    request: Callable[[Sequence[str]], Message],
    read: Callable[[Message], Iterable[tuple[str, int, Found]]],
    older: OlderForm[Found] | None,
    deadline: Deadline,
) -> list[tuple[str, int, Found]]:
    """What one coordinator answers about groups: each with its error code and its result."""
    try:
        return list(read(client.ask_broker(node_id, request(portion), deadline=deadline)))
    except UnsupportedFormatError:
        if older is None:
            raise
    return [
        older.read(group_id, client.ask_broker(node_id, older.request(group_id), deadline=deadline))
        for group_id in portion
    ]


def _by_coordinator(
    client: KafkaClient, answers: Answers[Found], group_ids: Sequence[str], kind: int, deadline: Deadline
) -> Iterator[tuple[int, Sequence[str]]]:
    coordinated: dict[int, list[str]] = defaultdict(list)
    for portion in in_requests(group_ids, _GROUPS_PER_REQUEST):
        for key, code, node_id in _find_all(client, kind, portion, deadline):
            if code:
                answers.refuse(key, code)
            else:
                coordinated[node_id].append(key)
    for node_id, groups in coordinated.items():
        yield from ((node_id, portion) for portion in in_requests(groups, _GROUPS_PER_REQUEST))


def _find_all(client: KafkaClient, kind: int, keys: Sequence[str], deadline: Deadline) -> list[tuple[str, int, int]]:
    """The error code of each, and its coordinator."""
    try:
        answer = client.ask_any(partial(_find_request, kind, keys), deadline=deadline)
        return [(found.key, int(found.error_code), int(found.node_id)) for found in answer.coordinators]
    except UnsupportedFormatError:
        # Refused before it was sent: Kafka 2.8 is asked for one after the other.
        alone = {key: client.ask_any(partial(_find_one_request, kind, key), deadline=deadline) for key in keys}
    return [(key, int(found.error_code), int(found.node_id)) for key, found in alone.items()]


def _find_one_request(kind: int, key: str) -> Message:
    request = FindCoordinatorRequest(key_type=kind, key=key)
    request.API_VERSION = _FIND_ONE
    return request


# For the offsets of share groups, new in Kafka 4.1.
DescribeShareGroupOffsetsRequest, _described = message_pair("DescribeShareGroupOffsets")
AlterShareGroupOffsetsRequest, _altered = message_pair("AlterShareGroupOffsets")
DeleteShareGroupOffsetsRequest, _deleted = message_pair("DeleteShareGroupOffsets")

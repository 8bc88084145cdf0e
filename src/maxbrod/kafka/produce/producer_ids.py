"""Producer ids and epochs, which brokers assign. With them brokers distinguish retries from new records.

A producer without a transactional id may ask any broker. One with a transactional id must ask its coordinator, which
fences the previous owner of that id by a new epoch and aborts its open transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafka.protocol.producer import InitProducerIdRequest

from maxbrod.errors import MaxbrodError, UnavailableError, UsageError
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.coordination import TRANSACTION, find_coordinator
from maxbrod.kafka.wire.error_codes import Code, Reaction, answered_with, code_name, reaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline

TRANSACTION_TIMEOUT_MS: Final = 60_000
_OPERATION: Final = "get a producer id"
_WAYS_OUT: Final[dict[int, str]] = {
    Code.CLUSTER_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Write to the topic",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Write the transactional id",
    Code.TOPIC_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Write to the topic",
    Code.INVALID_TRANSACTION_TIMEOUT: "the brokers allow no more than their transaction.max.timeout.ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """The producer fields of each batch header. An unused id has the epoch 0."""

    producer_id: int
    epoch: int


def new_producer_id(client: KafkaClient, *, deadline: Deadline | None = None) -> ProducerIdentity:
    """An identity that was never used before."""

    def once(limit: Deadline) -> ProducerIdentity:
        return _identity(client.ask_any(lambda: _request(None, TRANSACTION_TIMEOUT_MS), deadline=limit), "the cluster")

    return retry(once, deadline=deadline, what="a producer id")


def transactional_producer_id(
    client: KafkaClient,
    transactional_id: str,
    *,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    deadline: Deadline | None = None,
) -> ProducerIdentity:
    """The new identity of this transactional id. Its open transaction is aborted, and its previous owner is fenced."""
    answer = ask_transaction_coordinator(
        client,
        transactional_id,
        lambda: _request(transactional_id, timeout_ms),
        lambda answer: int(answer.error_code),
        operation=_OPERATION,
        deadline=deadline,
    )
    return _identity(answer, transactional_id)


def ask_transaction_coordinator(
    client: KafkaClient,
    transactional_id: str,
    build: Callable[[], Message],
    error_of: Callable[[Message], int],
    *,
    operation: str,
    deadline: Deadline | None = None,
) -> Message:
    """The first response of the coordinator without an error. Retriable errors are retried, others raised."""

    def once(limit: Deadline) -> Message:
        node_id = find_coordinator(client, transactional_id, TRANSACTION, deadline=limit)
        answer = client.ask_broker(node_id, build(), deadline=limit)
        if code := error_of(answer):
            raise _refusal(code, operation, transactional_id)
        return answer

    return retry(once, deadline=deadline, what=f"the coordinator of the transactional id {transactional_id}")


def _request(transactional_id: str | None, timeout_ms: int) -> Message:
    return InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
    )


def _identity(answer: Message, object_name: str) -> ProducerIdentity:
    if answer.error_code:
        raise _refusal(answer.error_code, _OPERATION, object_name)
    return ProducerIdentity(producer_id=answer.producer_id, epoch=answer.producer_epoch)


def _refusal(code: int, operation: str, object_name: str) -> MaxbrodError:
    if reaction(code) is not Reaction.FATAL:
        return UnavailableError(f"the broker answered {code_name(code)}", operation=operation, object_name=object_name)
    if code in _WAYS_OUT:
        message = f"the broker answered {code_name(code)}"
        return UsageError(message, operation=operation, object_name=object_name, hint=_WAYS_OUT[code])
    return answered_with(code, operation=operation, object_name=object_name)

"""The reaction to each of Kafka's error codes, in one table.

Unknown codes are fatal: refuse, never guess.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from kafka.errors import for_code

from maxbrod.errors import (
    CorruptDataError,
    MaxbrodError,
    ProducerFencedError,
    UnavailableError,
    UnsupportedFormatError,
    UsageError,
)


class Code(IntEnum):
    """The codes that this package distinguishes, with Kafka's names."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    LISTENER_NOT_FOUND = 72
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    TRANSACTION_ABORTABLE = 120


class Reaction(Enum):
    REFRESH = "ask for the metadata again, then retry"
    RETRY = "retry"
    FATAL = "give up"


_RETRY: Final = frozenset(
    {
        Code.REQUEST_TIMED_OUT,
        Code.NETWORK_EXCEPTION,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.NOT_CONTROLLER,  # any broker forwards a request to the controller, once it knows it
        Code.CONCURRENT_TRANSACTIONS,
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.THROTTLING_QUOTA_EXCEEDED,
    }
)
_REFRESH: Final = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.KAFKA_STORAGE_ERROR,
        Code.LISTENER_NOT_FOUND,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
    }
)
_FATAL: Final[dict[int, tuple[type[MaxbrodError], str]]] = {
    Code.CORRUPT_MESSAGE: (CorruptDataError, "the broker reports that its log is damaged here"),
    Code.INVALID_TOPIC: (UsageError, "Kafka allows letters, digits, '.', '_' and '-' in a topic's name"),
    Code.TOPIC_AUTHORIZATION_FAILED: (
        UsageError,
        "this user needs an ACL that allows it to Read and Describe the topic",
    ),
    Code.GROUP_AUTHORIZATION_FAILED: (UsageError, "this user needs an ACL that allows it to Describe the group"),
    Code.CLUSTER_AUTHORIZATION_FAILED: (UsageError, "this user lacks an ACL on the cluster"),
    Code.INVALID_PRODUCER_EPOCH: (ProducerFencedError, "another producer has taken over the transactional id"),
    Code.PRODUCER_FENCED: (ProducerFencedError, "another producer has taken over the transactional id"),
    Code.UNSUPPORTED_VERSION: (UnsupportedFormatError, "the broker does not support this version of the request"),
}


def reaction(code: int) -> Reaction:
    if code in _RETRY:
        return Reaction.RETRY
    return Reaction.REFRESH if code in _REFRESH else Reaction.FATAL


def code_name(code: int) -> str:
    """Kafka's name for a code, from the library if it is not in `Code`."""
    try:
        return Code(code).name
    except ValueError:
        return str(getattr(for_code(code), "message", "") or f"error code {code}")


def answered_with(code: int, *, operation: str, object_name: str, offset: int | None = None) -> MaxbrodError:
    """The error of our tree for a broker's error code. A retriable one is an UnavailableError."""
    message = f"the broker answered {code_name(code)}"
    if reaction(code) is not Reaction.FATAL:
        return UnavailableError(message, operation=operation, object_name=object_name, offset=offset)
    kind, hint = _FATAL.get(code, (MaxbrodError, "see the log of the broker"))
    return kind(message, operation=operation, object_name=object_name, offset=offset, hint=hint)

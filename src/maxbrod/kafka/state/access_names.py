"""Kafka's names for the numbers in ACLs and SCRAM credentials. Not from kafka-python, whose lists are outdated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

RESOURCE_TYPES: Final = {
    2: "TOPIC",
    3: "GROUP",
    4: "CLUSTER",
    5: "TRANSACTIONAL_ID",
    6: "DELEGATION_TOKEN",
    7: "USER",
}
PATTERN_TYPES: Final = {3: "LITERAL", 4: "PREFIXED"}
OPERATIONS: Final = {
    2: "ALL",
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
    13: "CREATE_TOKENS",
    14: "DESCRIBE_TOKENS",
    15: "TWO_PHASE_COMMIT",
}
PERMISSIONS: Final = {2: "DENY", 3: "ALLOW"}
MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def name_of(names: Mapping[int, str], number: int) -> str:
    """The name of a number. A number newer than this release is its own name."""
    return names.get(number, str(number))

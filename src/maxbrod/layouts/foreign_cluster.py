"""What an archive may know of its cluster besides topics: brokers, access, quotas, users. Never a secret.

Types and operations are Kafka's own numbers here: their names are the business of those who speak to clusters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignBroker:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignAcl:
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignQuota:
    entities: tuple[tuple[str, str | None], ...]
    """Types with names; without a name it is the default of its type."""
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignUser:
    """That a user can log in by this mechanism of SCRAM; by which secret is kept by nobody."""

    name: str
    mechanism: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCluster:
    brokers: tuple[ForeignBroker, ...] = ()
    acls: tuple[ForeignAcl, ...] = ()
    quotas: tuple[ForeignQuota, ...] = ()
    users: tuple[ForeignUser, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    """What was set for all brokers at once and holds for topics that do not say otherwise, by the topics' names."""

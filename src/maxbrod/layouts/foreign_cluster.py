"""What an archive may know of its cluster besides topics: brokers, ACLs, quotas, users. Never a secret.

Types and operations are Kafka's numbers. The code that talks to clusters maps them to names.
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
    """Pairs of type and name. None is the default of the type."""
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignUser:
    """A user who can log in by this SCRAM mechanism. The secret is never kept."""

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
    """Cluster-wide broker settings that are defaults of topic settings, under the names of the latter."""

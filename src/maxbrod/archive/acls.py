"""Matches ACLs with topics. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from maxbrod.kafka.state.cluster_state import Acl

LITERAL: Final = "LITERAL"
PREFIXED: Final = "PREFIXED"
ALL: Final = "*"
"""The resource name of an ACL for every topic."""


def is_about(acl: Acl, name: str) -> bool:
    """Whether an ACL of topics applies to the topic of this name."""
    if acl.pattern_type == PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.pattern_type == LITERAL and acl.resource_name in {name, ALL}

"""Which ACLs and quotas a restore brings back. Never more than there was: a rule may become narrower, not wider."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from maxbrod.kafka.cluster_state import Acl, Quota

_TOPIC: Final = "TOPIC"
_GROUP: Final = "GROUP"
_LITERAL: Final = "LITERAL"
_PREFIXED: Final = "PREFIXED"
_ALL: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPlan:
    create: tuple[Acl, ...]
    """In order, each once, without those that the target has."""
    left_out: tuple[Acl, ...]
    """Archived rules that are about nothing that is restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPlan:
    set: tuple[Quota, ...]
    kept: tuple[Quota, ...]
    """The target has other values for these, which stay: they were set for a reason that the archive does not know."""


def plan_acls(
    archived: Iterable[Acl],
    present: Iterable[Acl],
    *,
    topics: Mapping[str, str],
    groups: Iterable[str],
    whole: bool,
) -> AclPlan:
    """`topics` are the restored ones with their names at the target, `groups` the restored groups.

    With `whole`, which is for an archive that is restored complete and under its own names, all rules come back as
    they were. Otherwise those about restored topics and groups do: by their names at the target, and one for each
    where a rule is about many.
    """
    names = {_TOPIC: topics, _GROUP: {group: group for group in groups}}
    create: set[Acl] = set()
    left_out: list[Acl] = []
    for acl in archived:
        rules = [acl] if whole else list(_narrowed(acl, names.get(acl.resource_type, {})))
        create.update(rules)
        if not rules:
            left_out.append(acl)
    return AclPlan(create=tuple(sorted(create - set(present))), left_out=tuple(sorted(left_out)))


def plan_quotas(archived: Iterable[Quota], present: Iterable[Quota]) -> QuotaPlan:
    known = {quota.entities: quota for quota in present}
    wanted = list(archived)
    return QuotaPlan(
        set=tuple(each for each in wanted if each.entities not in known),
        kept=tuple(
            known[each.entities]
            for each in wanted
            if each.entities in known and dict(known[each.entities].values) != dict(each.values)
        ),
    )


def _narrowed(acl: Acl, names: Mapping[str, str]) -> Iterator[Acl]:
    for name, target in names.items():
        if _is_about(acl, name):
            yield replace(acl, resource_name=target, pattern_type=_LITERAL)


def _is_about(acl: Acl, name: str) -> bool:
    if acl.pattern_type == _PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.pattern_type == _LITERAL and acl.resource_name in {name, _ALL}

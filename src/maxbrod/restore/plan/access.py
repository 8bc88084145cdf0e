"""Which ACLs and quotas a restore brings back. Never more than there was: a rule may become narrower, not wider."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from maxbrod.archive.acls import ALL, LITERAL, PREFIXED, is_about
from maxbrod.restore.plan.rename import Rename

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from maxbrod.kafka.state.cluster_state import Acl, ClusterState, Quota
    from maxbrod.restore.plan.request import RestoreRequest

_TOPIC: Final = "TOPIC"
_GROUP: Final = "GROUP"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPlan:
    create: tuple[Acl, ...]
    """In order, each once, without those that the target has."""
    present: tuple[Acl, ...] = ()
    """Those that the target has."""
    narrowed: tuple[Acl, ...] = ()
    """Archived rules about many names, of which only what they say of the restored ones comes back."""
    left_out: tuple[Acl, ...] = ()
    """Archived rules that are about nothing that is restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPlan:
    set: tuple[Quota, ...]
    present: tuple[Quota, ...] = ()
    """The target has the very same."""
    kept: tuple[Quota, ...] = ()
    """The target has other values for these, which stay: they were set for a reason that the archive does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPlan:
    """None is what was not asked for, or what the archive does not know."""

    acls: AclPlan | None = None
    quotas: QuotaPlan | None = None
    users: tuple[str, ...] = ()
    """Users of SCRAM that the target lacks. Kafka tells nobody their secrets, so they are not in any archive."""


def plan_access(
    request: RestoreRequest,
    archived: ClusterState | None,
    target: ClusterState,
    *,
    topics: Mapping[str, str],
    groups: Iterable[str],
) -> AccessPlan:
    """`topics` are the restored ones with their names at the target, `groups` the restored groups."""
    if archived is None or not (request.with_acls or request.with_quotas):
        return AccessPlan()
    acls = quotas = None
    if request.with_acls and archived.acls is not None:
        present = target.acls or ()
        acls = plan_acls(archived.acls, present, topics=topics, groups=groups, whole=is_whole(request))
    if request.with_quotas and archived.quotas is not None:
        quotas = plan_quotas(archived.quotas, target.quotas or ())
    there = {user.name for user in target.users or ()}
    users = {user.name for user in archived.users or ()} - there
    return AccessPlan(acls=acls, quotas=quotas, users=tuple(sorted(users)))


def is_whole(request: RestoreRequest) -> bool:
    """Whether all of an archive's topics are restored, under their own names."""
    some = request.topics or request.exclude or request.partitions or request.ranges or request.topic_ids
    return not some and request.rename == Rename()


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
    wanted: set[Acl] = set()
    narrowed: set[Acl] = set()
    left_out: set[Acl] = set()
    for acl in archived:
        rules = [acl] if whole else list(_narrowed(acl, names.get(acl.resource_type, {})))
        wanted.update(rules)
        if not rules:
            left_out.add(acl)
        elif not whole and (acl.pattern_type == PREFIXED or acl.resource_name == ALL):
            narrowed.add(acl)
    there = wanted & set(present)
    return AclPlan(
        create=tuple(sorted(wanted - there)),
        present=tuple(sorted(there)),
        narrowed=tuple(sorted(narrowed)),
        left_out=tuple(sorted(left_out)),
    )


def plan_quotas(archived: Iterable[Quota], present: Iterable[Quota]) -> QuotaPlan:
    known = {quota.entities: quota for quota in present}
    wanted = list(archived)
    there = [each for each in wanted if each.entities in known]
    same = [each for each in there if dict(known[each.entities].values) == dict(each.values)]
    return QuotaPlan(
        set=tuple(each for each in wanted if each.entities not in known),
        present=tuple(same),
        kept=tuple(known[each.entities] for each in there if each not in same),
    )


def _narrowed(acl: Acl, names: Mapping[str, str]) -> Iterator[Acl]:
    for name, target in names.items():
        if is_about(acl, name):
            yield replace(acl, resource_name=target, pattern_type=LITERAL)

"""The ACLs and quotas that a restore brings back, and their obstacles. A rule may become narrower, never wider."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from maxbrod.archive.knowledge import ALL, LITERAL, PREFIXED, is_about
from maxbrod.kafka.state.cluster_state import Acl, Quota  # noqa: TC001 - pydantic reads the types of fields
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.request import Rename

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.restore.plan.targets import TargetState

_TOPIC: Final = "TOPIC"
_GROUP: Final = "GROUP"
_USERS_NAMED_MAX: Final = 5
_NOT_ARCHIVED: Final = "the archive has no {}: the backup was not allowed to read them"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPlan:
    create: tuple[Acl, ...]
    """Rules that the target lacks, sorted, each once."""
    present: tuple[Acl, ...] = ()
    """Rules that the target has."""
    narrowed: tuple[Acl, ...] = ()
    """Archived rules about many names. They come back for the restored names only."""
    left_out: tuple[Acl, ...] = ()
    """Archived rules about nothing that is restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPlan:
    set: tuple[Quota, ...]
    present: tuple[Quota, ...] = ()
    """Quotas that the target has with the same values."""
    kept: tuple[Quota, ...] = ()
    """Quotas of the target with other values. They stay: the archive cannot know why somebody set them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPlan:
    """None: not requested, or not in the archive."""

    acls: AclPlan | None = None
    quotas: QuotaPlan | None = None
    users: tuple[str, ...] = ()
    """SCRAM users that the target lacks. Kafka never reveals their secrets, so no archive holds them."""


def plan_access(
    request: RestoreRequest,
    archived: ClusterState | None,
    target: ClusterState,
    *,
    topics: Mapping[str, str],
    groups: Iterable[str],
) -> AccessPlan:
    """`topics` maps restored topics to their names at the target; `groups` are the restored groups."""
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
    """True if the request restores all topics of an archive under their own names."""
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
    """`topics` maps restored topics to their names at the target; `groups` are the restored groups.

    With `whole`, for an archive that is restored completely and under its own names, all rules come back unchanged.
    Otherwise the rules about restored topics and groups come back, under their names at the target; a rule about many
    names becomes one rule for each.
    """
    names = {_TOPIC: topics, _GROUP: {group: group for group in groups}}
    chosen: set[Acl] = set()
    narrowed: set[Acl] = set()
    left_out: set[Acl] = set()
    for acl in archived:
        rules = [acl] if whole else list(_narrowed(acl, names.get(acl.resource_type, {})))
        chosen.update(rules)
        if not rules:
            left_out.add(acl)
        elif not whole and (acl.pattern_type == PREFIXED or acl.resource_name == ALL):
            narrowed.add(acl)
    there = chosen & set(present)
    return AclPlan(
        create=tuple(sorted(chosen - there)),
        present=tuple(sorted(there)),
        narrowed=tuple(sorted(narrowed)),
        left_out=tuple(sorted(left_out)),
    )


def plan_quotas(archived: Iterable[Quota], present: Iterable[Quota]) -> QuotaPlan:
    known = {quota.entities: quota for quota in present}
    quotas = list(archived)
    there = [each for each in quotas if each.entities in known]
    same = [each for each in there if dict(known[each.entities].values) == dict(each.values)]
    return QuotaPlan(
        set=tuple(each for each in quotas if each.entities not in known),
        present=tuple(same),
        kept=tuple(known[each.entities] for each in there if each not in same),
    )


def _narrowed(acl: Acl, names: Mapping[str, str]) -> Iterator[Acl]:
    for name, target in names.items():
        if is_about(acl, name):
            yield replace(acl, resource_name=target, pattern_type=LITERAL)


def find_access_obstacles(
    request: RestoreRequest,
    archived: ClusterState | None,
    state: TargetState,
    access: AccessPlan,
    runs: Mapping[str, str] | None = None,
) -> Iterator[Obstacle]:
    """Obstacles to the ACLs and quotas of the plan. `runs` names the run that they are from, if it is another one."""
    for what, name in (("acls", "ACLs"), ("quotas", "quotas")):
        if getattr(request, f"with_{what}") and what in (runs or {}):
            why = f"{name} are those of run {(runs or {})[what]}: later backups were not allowed to read them"
            yield _warning(request, why, "allow the user of the backup to read them, and back up again")
    if request.with_acls and (archived is None or archived.acls is None):
        yield _fatal(_NOT_ARCHIVED.format("ACLs"), "restore without --with-acls")
    if request.with_quotas and (archived is None or archived.quotas is None):
        yield _fatal(_NOT_ARCHIVED.format("quotas"), "restore without --with-quotas")
    if access.acls is not None:
        yield from _acls(request, state, access.acls)
    for quota in access.quotas.kept if access.quotas is not None else ():
        what = "the target has another quota for it and keeps it"
        hint = "to use the archived one, see 'maxbrod show' and set it with kafka-configs.sh"
        yield _warning(request, what, hint, where=describe_quota(quota))
    if access.users:
        shown = ", ".join(access.users[:_USERS_NAMED_MAX])
        more = f" and {len(access.users) - _USERS_NAMED_MAX} more" if len(access.users) > _USERS_NAMED_MAX else ""
        what = f"Kafka does not reveal the secrets of SCRAM users, so these are not restored: {shown}{more}"
        yield _warning(request, what, "create them with kafka-configs.sh")


def _acls(request: RestoreRequest, state: TargetState, acls: AclPlan) -> Iterator[Obstacle]:
    if acls.create and not state.authorized:
        yield _fatal("the cluster has no authorizer, so it accepts no ACLs", "restore without --with-acls")
    for acl in acls.create:
        if any(word.isdigit() for word in (acl.resource_type, acl.pattern_type, acl.operation, acl.permission)):
            # It may deny something: leaving it out would allow that.
            what = "this release does not know the type of the rule"
            yield _fatal(what, "restore without --with-acls, and create ACLs by hand", where=describe_acl(acl))
    for acl in acls.narrowed:
        what = "the rule is about many names; it is restored for each restored name, and for no other"
        yield _warning(request, what, "only a restore of the whole archive restores it unchanged", describe_acl(acl))


def describe_acl(acl: Acl) -> str:
    pattern = "" if acl.pattern_type == "LITERAL" else f" {acl.pattern_type.lower()}"
    return (
        f"{acl.permission.lower()} {acl.principal} {acl.operation.lower()} on"
        f"{pattern} {acl.resource_type.lower()} {acl.resource_name} from {acl.host}"
    )


def describe_quota(quota: Quota) -> str:
    return ", ".join(
        f"{entity.type} {'(default)' if entity.name is None else entity.name}" for entity in quota.entities
    )


def _fatal(what: str, hint: str, where: str | None = None) -> Obstacle:
    return Obstacle(kind=ObstacleKind.ACCESS, where=where, what=what, hint=hint, fatal=True)


def _warning(request: RestoreRequest, what: str, hint: str, where: str | None = None) -> Obstacle:
    return Obstacle(kind=ObstacleKind.ACCESS, where=where, what=what, hint=hint, fatal=request.strict)

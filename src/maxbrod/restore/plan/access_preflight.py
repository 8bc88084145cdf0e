"""What stands in the way of ACLs and quotas that shall come back, and what of them does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from maxbrod.kafka.state.cluster_state import Acl, ClusterState, Quota
    from maxbrod.restore.plan.access import AccessPlan, AclPlan
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.restore.plan.targets import TargetState

_USERS_TOLD_MAX: Final = 5
_NOT_ARCHIVED: Final = "the archive has no {}: nobody could read them when it was made"


def find_access_obstacles(
    request: RestoreRequest,
    archived: ClusterState | None,
    state: TargetState,
    access: AccessPlan,
    runs: Mapping[str, str] | None = None,
) -> Iterator[Obstacle]:
    """`runs` says which other run ACLs or quotas are from, as `Known.access_runs` has it."""
    for what, name in (("acls", "ACLs"), ("quotas", "quotas")):
        if getattr(request, f"with_{what}") and what in (runs or {}):
            told = f"{name} are those of run {(runs or {})[what]}: nobody could read them since"
            yield _warning(request, told, "allow the user of the backup to read them, and back up again")
    if request.with_acls and (archived is None or archived.acls is None):
        yield _fatal(_NOT_ARCHIVED.format("ACLs"), "restore without --with-acls")
    if request.with_quotas and (archived is None or archived.quotas is None):
        yield _fatal(_NOT_ARCHIVED.format("quotas"), "restore without --with-quotas")
    if access.acls is not None:
        yield from _acls(request, state, access.acls)
    for quota in access.quotas.kept if access.quotas is not None else ():
        what = "the target has another quota for it, which stays"
        hint = "set it with Kafka's own tools if the archived one is wanted: see 'maxbrod show'"
        yield _warning(request, what, hint, where=describe_quota(quota))
    if access.users:
        shown = ", ".join(access.users[:_USERS_TOLD_MAX])
        more = f" and {len(access.users) - _USERS_TOLD_MAX} more" if len(access.users) > _USERS_TOLD_MAX else ""
        what = f"Kafka tells nobody the secrets of SCRAM users, so they do not come back: {shown}{more}"
        yield _warning(request, what, "create them anew, with kafka-configs.sh")


def _acls(request: RestoreRequest, state: TargetState, acls: AclPlan) -> Iterator[Obstacle]:
    if acls.create and not state.authorized:
        yield _fatal("the cluster has no authorizer, so it takes no ACLs", "restore without --with-acls")
    for acl in acls.create:
        if any(word.isdigit() for word in (acl.resource_type, acl.pattern_type, acl.operation, acl.permission)):
            # It may forbid something: leaving it out would allow that.
            what = "this release does not know what the rule is about"
            yield _fatal(what, "restore without --with-acls, and create ACLs by hand", where=describe_acl(acl))
    for acl in acls.narrowed:
        what = "the rule is about many names; it comes back for each of them that is restored, and for no other"
        yield _warning(request, what, "only a restore of the whole archive brings it back as it was", describe_acl(acl))


def describe_acl(acl: Acl) -> str:
    pattern = "" if acl.pattern_type == "LITERAL" else f" {acl.pattern_type.lower()}"
    return (
        f"{acl.permission.lower()} {acl.principal} {acl.operation.lower()} on"
        f"{pattern} {acl.resource_type.lower()} {acl.resource_name} from {acl.host}"
    )


def describe_quota(quota: Quota) -> str:
    return ", ".join(f"{each.type} {'(default)' if each.name is None else each.name}" for each in quota.entities)


def _fatal(what: str, hint: str, where: str | None = None) -> Obstacle:
    return Obstacle(kind=ObstacleKind.ACCESS, where=where, what=what, hint=hint, fatal=True)


def _warning(request: RestoreRequest, what: str, hint: str, where: str | None = None) -> Obstacle:
    return Obstacle(kind=ObstacleKind.ACCESS, where=where, what=what, hint=hint, fatal=request.strict)

"""The ACLs, quotas and settings that a restore brings back, and their obstacles.

A rule may become narrower, never wider.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from maxbrod.archive.knowledge import ALL, LITERAL, PREFIXED, is_about
from maxbrod.archive.renames import Rename
from maxbrod.kafka.state.cluster_state import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    METRICS_SETTINGS,
    Acl,
    ClusterState,
    EntitySettings,
    Quota,
)
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.request import RestoreRequest

if TYPE_CHECKING:
    from maxbrod.restore.plan.targets import TargetState

_TOPIC: Final = "TOPIC"
_GROUP: Final = "GROUP"
_USERS_NAMED_MAX: Final = 5
_ASKED_FOR: Final = {"acls": "ACLs", "quotas": "quotas", "settings": "settings"}
"""Parts of a cluster's state that a request may ask for, and their names."""


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
class SettingsPlan:
    set: tuple[EntitySettings, ...]
    """Values that the target does not have."""
    kept: tuple[EntitySettings, ...] = ()
    """Archived values for which the target has others. The target keeps its own."""
    hidden: tuple[EntitySettings, ...] = ()
    """Sensitive values, which Kafka does not reveal, and settings of single brokers, which only those can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPlan:
    """None: not requested, or not in the archive."""

    acls: AclPlan | None = None
    quotas: QuotaPlan | None = None
    settings: SettingsPlan | None = None
    users: tuple[str, ...] = ()
    """SCRAM users that the target lacks. Kafka never reveals their secrets, so no archive holds them."""
    tokens: tuple[str, ...] = ()
    """Owners of delegation tokens. Tokens belong to one cluster: clients need new ones."""


def plan_access(
    request: RestoreRequest,
    archived: ClusterState | None,
    target: ClusterState,
    *,
    topics: Mapping[str, str],
    groups: Iterable[str],
) -> AccessPlan:
    """`topics` maps restored topics to their names at the target; `groups` are the restored groups."""
    if archived is None:
        return AccessPlan()
    settings = plan_settings(request, archived, target, groups)
    if not (request.with_acls or request.with_quotas):
        return AccessPlan(settings=settings)
    acls = quotas = None
    if request.with_acls and archived.acls is not None:
        present = target.acls or ()
        acls = plan_acls(archived.acls, present, topics=topics, groups=groups, whole=is_whole(request))
    if request.with_quotas and archived.quotas is not None:
        quotas = plan_quotas(archived.quotas, target.quotas or ())
    there = {user.name for user in target.users or ()}
    users = {user.name for user in archived.users or ()} - there
    tokens = {token.owner for token in archived.tokens or ()} if archived.cluster_id != target.cluster_id else ()
    return AccessPlan(
        acls=acls, quotas=quotas, settings=settings, users=tuple(sorted(users)), tokens=tuple(sorted(tokens))
    )


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
        rules = [acl]
        if not whole:
            rules = [
                replace(acl, resource_name=target, pattern_type=LITERAL)
                for name, target in names.get(acl.resource_type, {}).items()
                if is_about(acl, name)
            ]
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
    there = [quota for quota in quotas if quota.entities in known]
    same = [quota for quota in there if dict(known[quota.entities].values) == dict(quota.values)]
    return QuotaPlan(
        set=tuple(quota for quota in quotas if quota.entities not in known),
        present=tuple(same),
        kept=tuple(known[quota.entities] for quota in there if quota not in same),
    )


def plan_settings(
    request: RestoreRequest, archived: ClusterState, target: ClusterState, groups: Iterable[str]
) -> SettingsPlan | None:
    """None: the archive has no settings, or none that the request restores.

    A share group without its settings would begin at the end of the log. So those of restored groups are always part of
    the plan.
    """
    restored = frozenset(groups)
    chosen = [
        entity
        for entity in archived.settings or ()
        if (entity.name in restored if entity.kind == GROUP_SETTINGS else request.with_settings)
    ]
    if not chosen:
        return None
    known = {(entity.kind, entity.name): entity.values for entity in target.settings or ()}
    missing, other, hidden = [], [], []
    for entity in chosen:
        there = known.get((entity.kind, entity.name), {})
        absent = lacking(entity.values, there)
        if _is_of_one_broker(entity):
            hidden.append(entity)
            continue
        missing.append(replace(entity, values={key: value for key, value in absent.items() if value is not None}))
        hidden.append(replace(entity, values={key: value for key, value in absent.items() if value is None}))
        differs = {key: value for key, value in entity.values.items() if key in there and there[key] != value}
        other.append(replace(entity, values=differs))
    return SettingsPlan(set=_with_values(missing), kept=_with_values(other), hidden=_with_values(hidden))


def lacking(values: Mapping[str, str | None], there: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the values of settings that are not there."""
    return {name: value for name, value in values.items() if name not in there}


def _with_values(entities: Iterable[EntitySettings]) -> tuple[EntitySettings, ...]:
    return tuple(entity for entity in entities if entity.values)


def _is_of_one_broker(entity: EntitySettings) -> bool:
    return entity.kind == BROKER_SETTINGS and entity.name != ""


def find_access_obstacles(
    request: RestoreRequest,
    archived: ClusterState | None,
    state: TargetState,
    access: AccessPlan,
    runs: Mapping[str, str] | None = None,
) -> Iterator[Obstacle]:
    """Obstacles to the access of the plan. `runs` names the run that it is from, if that is another one."""
    for what, name in _ASKED_FOR.items():
        if getattr(request, f"with_{what}") and what in (runs or {}):
            why = f"{name} are those of run {(runs or {})[what]}: later backups were not allowed to read them"
            yield _warning(request, why, "allow the user of the backup to read them, and back up again")
    for what, name in _ASKED_FOR.items():
        if getattr(request, f"with_{what}") and getattr(archived, what, None) is None:
            why = f"the archive has no {name}: the backup was not allowed to read them"
            yield _fatal(why, f"restore without --with-{what}")
    if access.acls is not None:
        yield from _acls(request, state, access.acls)
    if access.settings is not None:
        yield from _settings(request, access.settings)
    yield from _features(request, archived, state.cluster)
    for quota in access.quotas.kept if access.quotas is not None else ():
        what = "the target has another quota for it and keeps it"
        hint = "to use the archived one, see 'maxbrod show' and set it with kafka-configs.sh"
        yield _warning(request, what, hint, where=describe_quota(quota))
    yield from _secrets(request, access)


def _secrets(request: RestoreRequest, access: AccessPlan) -> Iterator[Obstacle]:
    """What an archive cannot hold."""
    if access.users:
        what = f"Kafka does not reveal the secrets of SCRAM users, so these are not restored: {_some(access.users)}"
        yield _warning(request, what, "create them with kafka-configs.sh")
    if access.tokens:
        what = "delegation tokens are valid in one cluster alone, so those of these owners are not restored: "
        yield _warning(request, what + _some(access.tokens), "create new ones with kafka-delegation-tokens.sh")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _USERS_NAMED_MAX} more" if len(names) > _USERS_NAMED_MAX else ""
    return ", ".join(names[:_USERS_NAMED_MAX]) + more


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


def _settings(request: RestoreRequest, settings: SettingsPlan) -> Iterator[Obstacle]:
    for entity in settings.kept:
        what = f"the target has other values of {', '.join(sorted(entity.values))} and keeps them"
        hint = "to use the archived ones, set them with kafka-configs.sh"
        yield _warning(request, what, hint, describe_entity(entity))
    for entity in settings.hidden:
        why = "they belong to one broker" if _is_of_one_broker(entity) else "Kafka does not reveal them"
        what = f"these settings are not restored, because {why}: {', '.join(sorted(entity.values))}"
        yield _warning(request, what, "set them with kafka-configs.sh", describe_entity(entity))


def _features(request: RestoreRequest, archived: ClusterState | None, target: ClusterState) -> Iterator[Obstacle]:
    """Features whose level at the target is lower: what needs the higher level does not work there."""
    if archived is None or archived.features is None or target.features is None:
        return
    for name, level in sorted(archived.features.items()):
        there = target.features.get(name, 0)
        if there < level:
            what = f"the feature {name} has level {there} at the target, and had {level}"
            yield _warning(request, what, "if records or groups need it, upgrade the cluster with kafka-features.sh")


def describe_entity(entity: EntitySettings) -> str:
    if entity.kind == METRICS_SETTINGS:
        return f"client metrics {entity.name}"
    return f"{entity.kind} {entity.name}" if entity.name else "all brokers"


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
    return Obstacle(ObstacleKind.ACCESS, where, what, hint)


def _warning(request: RestoreRequest, what: str, hint: str, where: str | None = None) -> Obstacle:
    return Obstacle(ObstacleKind.ACCESS, where, what, hint, fatal=request.strict)

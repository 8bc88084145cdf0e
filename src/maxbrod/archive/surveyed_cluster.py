"""What a surveyed archive knows of its cluster, in the form in which our own runs record it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.kafka.state.access_names import MECHANISMS, OPERATIONS, PATTERN_TYPES, PERMISSIONS, RESOURCE_TYPES, name_of
from maxbrod.kafka.state.cluster_state import Acl, Broker, MissingState, Quota, QuotaEntity, ScramUser, TopicState

if TYPE_CHECKING:
    from maxbrod.layouts.foreign import ForeignTopic, Survey
    from maxbrod.layouts.foreign_cluster import ForeignCluster

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def topic_state(survey: Survey, name: str, topic_id: str, count: int) -> TopicState:
    known = survey.topics.get(name)
    configs = None if known is None or not (known.configs or known.replicas) else dict(known.configs)
    defaults = {} if survey.cluster is None else survey.cluster.defaults
    return TopicState(
        name=name,
        topic_id=topic_id,
        internal=name in _INTERNAL,
        replicas=_replicas(known, count),
        configs=configs,
        effective=None if configs is None else {**defaults, **configs},
    )


def _replicas(known: ForeignTopic | None, count: int) -> tuple[tuple[int, ...], ...]:
    """Without a factor there are no replicas: a restore then takes the default of its brokers."""
    if known is not None and len(known.replicas) == count:
        return known.replicas
    factor = 0 if known is None or known.replication_factor is None else known.replication_factor
    return (tuple(range(factor)),) * count


def brokers_of(cluster: ForeignCluster | None) -> tuple[Broker, ...]:
    found = () if cluster is None else cluster.brokers
    return tuple(Broker(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack) for each in found)


def acls_of(cluster: ForeignCluster | None) -> tuple[Acl, ...] | None:
    if cluster is None:
        return None
    return tuple(
        Acl(
            resource_type=name_of(RESOURCE_TYPES, each.resource_type),
            resource_name=each.resource_name,
            pattern_type=name_of(PATTERN_TYPES, each.pattern_type),
            principal=each.principal,
            host=each.host,
            operation=name_of(OPERATIONS, each.operation),
            permission=name_of(PERMISSIONS, each.permission),
        )
        for each in cluster.acls
    )


def quotas_of(cluster: ForeignCluster | None) -> tuple[Quota, ...] | None:
    if cluster is None:
        return None
    return tuple(
        Quota(
            entities=tuple(QuotaEntity(type=kind, name=name) for kind, name in each.entities),
            values=dict(each.values),
        )
        for each in cluster.quotas
    )


def users_of(cluster: ForeignCluster | None) -> tuple[ScramUser, ...] | None:
    if cluster is None:
        return None
    return tuple(
        ScramUser(name=each.name, mechanism=name_of(MECHANISMS, each.mechanism), iterations=each.iterations)
        for each in cluster.users
    )


def gaps_of(survey: Survey) -> tuple[MissingState, ...]:
    """What nobody can know from there."""
    if survey.cluster is not None:
        return ()
    return (
        MissingState(
            what="ACLs, quotas and users",
            why=f"the layout {survey.layout} does not keep them",
            hint="back up with maxbrod's own layout to have them",
        ),
    )

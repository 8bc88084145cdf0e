"""What the user of a restore may do at the target, as far as brokers tell it before anything is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.admin.rights import cluster_operations, group_operations, topic_operations
from maxbrod.kafka.wire.coordination import TRANSACTION, ask_for_coordinator
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.restore.plan.targets import Right
from maxbrod.restore.task import transactional_id_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from maxbrod.kafka.admin.rights import Operations
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.restore.plan.plan import RestorePlan

_OF_CLUSTER: Final = {
    Right.CLUSTER_ACTION: "CLUSTER_ACTION",
    Right.ALTER_CLUSTER: "ALTER",
    Right.ALTER_CLUSTER_CONFIGS: "ALTER_CONFIGS",
}
_OF_TOPICS: Final = (Right.WRITE, Right.READ, Right.DELETE, Right.ALTER_CONFIGS)

_COORDINATORS_S: Final = 30.0
"""A coordinator that is away is no reason to put a plan off: what it would tell is unknown then."""
_HOLES_HINT: Final = (
    "allow ClusterAction and Describe on the cluster, or Write on transactional ids that begin with 'maxbrod-'; "
    "or say --offsets append"
)

Rights = tuple[dict[Right, bool], dict[Right, tuple[str, ...]]]


def look_at_rights(
    client: KafkaClient,
    topics: Collection[str],
    groups: Collection[str],
    *,
    missing: Collection[str],
    patience_s: float,
) -> Rights:
    """What is allowed, without what nobody tells; and on which topics and groups the rest is denied.

    `missing` are the topics that would have to be created.
    """
    found: dict[Right, bool] = {}
    denied: dict[Right, tuple[str, ...]] = {}
    of_cluster = cluster_operations(client, deadline=Deadline.after(patience_s))
    if of_cluster is not None:
        found |= {right: operation in of_cluster for right, operation in _OF_CLUSTER.items()}
    # Holes are closed the slower way, which needs no right, unless somebody says that the faster one is allowed.
    found.setdefault(Right.CLUSTER_ACTION, False)
    of_topics = topic_operations(client, topics, deadline=Deadline.after(patience_s))
    for right in _OF_TOPICS:
        _judge(right, right.name, of_topics, topics, found, denied)
    if "CREATE" in (of_cluster or ()):
        found[Right.CREATE] = True
    else:
        of_missing = {name: allowed for name, allowed in of_topics.items() if name in missing}
        _judge(Right.CREATE, "CREATE", of_missing, missing, found, denied)
    limit = Deadline.after(min(patience_s, _COORDINATORS_S))
    of_groups = group_operations(client, groups, deadline=limit) if groups else {}
    _judge(Right.READ_GROUPS, "READ", of_groups, groups, found, denied)
    return found, denied


def _judge(
    right: Right,
    operation: str,
    told: Mapping[str, Operations],
    names: Collection[str],
    found: dict[Right, bool],
    denied: dict[Right, tuple[str, ...]],
) -> None:
    """Where one thing is denied for one of many, it is denied: the restore would end there."""
    without = tuple(sorted(name for name, allowed in told.items() if operation not in allowed))
    if without:
        found[right], denied[right] = False, without
    elif len(told) == len(names):
        found[right] = True


def missing_transactions(client: KafkaClient, plan: RestorePlan, *, patience_s: float) -> Iterator[Obstacle]:
    """Whether holes can be closed by empty transactions, for those who may not write markers.

    Of the holes that committed transactions leave, the catalog knows nothing: they are met, or they are not.
    """
    exact = [
        (f"{topic.target.name}-{each.source.partition}", each.offsets.cost.holes)
        for topic in plan.topics
        for each in topic.partitions
        if each.offsets.mode is OffsetsMode.EXACT
    ]
    where, holes = max(exact, key=lambda each: each[1], default=(None, 0))
    if where is None:
        return
    transactional_id = transactional_id_of(plan.restore_id, where)
    try:
        code, _ = ask_for_coordinator(client, transactional_id, TRANSACTION, deadline=Deadline.after(patience_s))
    except MaxbrodError:
        return  # nobody knows
    if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        what = "this user may neither write markers into holes nor use a transactional id instead"
        yield Obstacle(
            kind=ObstacleKind.PERMISSION if holes else ObstacleKind.RIGHT_UNKNOWN,
            where=where,
            what=what if holes else f"{what}, which is needed if transactions were written to it",
            hint=_HOLES_HINT,
            fatal=bool(holes),
        )

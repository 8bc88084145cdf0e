"""Whether a plan that the user has agreed to is still the plan that would be made now. Pure.

Any time may pass between showing a plan and the answer to the prompt. An archive that has grown is no change: it still
holds what was agreed to. A target that has changed, or a new obstacle, is one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError
from maxbrod.restore.plan.obstacles import ObstacleKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.restore.plan.plan import RestorePlan, TopicPlan

_PASSING: Final = frozenset({ObstacleKind.RIGHT_UNKNOWN, ObstacleKind.RETENTION, ObstacleKind.GROUPS})
"""Warnings that come and go with time, or with the members of a group."""


def refuse_changes(agreed: RestorePlan, now: RestorePlan, *, begun: bool) -> None:
    """RefusedError: `now` is not what was agreed to. `begun`: `now` is the stored plan of an interrupted restore."""
    what = next(_begun_changes(agreed, now) if begun else _changes(agreed, now), None)
    if what is not None:
        raise RefusedError(
            f"the plan has changed since it was agreed to: {what}",
            operation="restore",
            object_name=agreed.restore_id,
            hint="nothing was changed; run the same command again, which shows the new plan",
        )


def _begun_changes(agreed: RestorePlan, now: RestorePlan) -> Iterator[str]:
    # The rate is how the plan is carried out, not what it does.
    if replace(now, rate_bytes_per_s=None) != replace(agreed, rate_bytes_per_s=None):
        yield "the same command was begun elsewhere in the meantime"


def _changes(agreed: RestorePlan, now: RestorePlan) -> Iterator[str]:
    if (agreed.restore_id, agreed.cluster_id) != (now.restore_id, now.cluster_id):
        yield "the same command was carried out elsewhere in the meantime"
    topics = {(topic.target.source_topic, topic.target.topic_id): topic for topic in now.topics}
    for topic in agreed.topics:
        name = topic.target.name
        found = topics.get((topic.target.source_topic, topic.target.topic_id))
        if found is None or not _holds(found, topic):
            yield f"the archive no longer holds all of {topic.target.source_topic}"
        elif found.target != topic.target:
            yield f"{name} was {'changed' if found.target.exists and topic.target.exists else 'created or deleted'}"
    if agreed.access != now.access:
        yield "ACLs or quotas have changed"
    known = {(each.kind, each.where) for each in agreed.obstacles}
    for obstacle in now.obstacles:
        if obstacle.kind not in _PASSING and (obstacle.kind, obstacle.where) not in known:
            yield str(obstacle)


def _holds(now: TopicPlan, agreed: TopicPlan) -> bool:
    """Whether the archive still holds all offsets; more of them do no harm."""
    found = {partition.source.partition: partition.source for partition in now.partitions}
    sources = (partition.source for partition in agreed.partitions)
    return all(
        source.partition in found
        and found[source.partition].asked_first <= source.asked_first
        and found[source.partition].asked_end >= source.asked_end
        for source in sources
    )

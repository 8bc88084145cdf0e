"""Checks a restore that was agreed to, or begun before by this command or another one, against the present. Pure.

How far each partition got is not decided here: the task reads that from the target's log (`restore.task`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError, TopicGoneError
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from maxbrod.kafka.state.cluster_state import TopicState
    from maxbrod.restore.plan.plan import RestorePlan, TopicPlan
    from maxbrod.restore.plan.targets import TargetTopic


_PASSING: Final = frozenset({ObstacleKind.RIGHT_UNKNOWN, ObstacleKind.RETENTION, ObstacleKind.GROUPS})
"""Warnings that come and go with time, or with the members of a group."""


def check_topic(target: TargetTopic, present: TopicState | None, created_id: str | None, *, empty: bool) -> bool:
    """True if the topic exists and the restore can write to it. `created_id` is the id that this restore gave it.

    A topic that this restore created and somebody deleted is created again, as if nothing had been restored to it.
    TopicGoneError: the name belongs to another topic now, or a topic that existed before the restore was deleted.
    RefusedError: somebody else created the topic, or changed its number of partitions.
    """
    known = target.target_id or created_id
    if present is None and target.target_id is None:
        return False
    if present is None or (known is not None and present.topic_id != known):
        raise TopicGoneError(
            "the target topic was deleted" + (", and another topic has its name now" if present else ""),
            operation="resume a restore",
            object_name=target.name,
            hint="delete the topic of this name and run the same command again, which creates it again"
            if target.target_id is None
            else "restore with another command, under another name",
        )
    # A crash between creating a topic and storing its id leaves one that is ours and unknown. It is empty: the first
    # record is sent only once the id is stored.
    if known is None and not empty:
        raise _refused("somebody else has created the topic and written to it", target.name)
    if present.partition_count != target.partition_count:
        what = f"the topic has {present.partition_count} partitions now, not {target.partition_count}"
        raise _refused(what, target.name)
    return True


def done_before(
    plan: RestorePlan, created: Mapping[str, str], present: Callable[[str], TopicState | None]
) -> Iterator[Obstacle]:
    """Topics to which this same command has already restored everything.

    A user who sees a command die cannot know whether it had finished, and runs it again; that must not restore twice.
    """
    for name in _same_topics(plan, created, present):
        yield Obstacle(
            kind=ObstacleKind.DONE_BEFORE,
            where=name,
            what="the same command has already restored all of it",
            hint=f"its report is in restores/{plan.restore_id}/ in the archive; say --again to restore it once more, "
            "into an empty topic, or with --offsets append after the existing records",
            fatal=True,
        )


def held_by(
    plan: RestorePlan, created: Mapping[str, str], present: Callable[[str], TopicState | None]
) -> Iterator[Obstacle]:
    """Topics that an interrupted restore by another command is writing to.

    Their configuration is the temporary one of that restore. A second restore would take it for the topic's own, and
    leave it in place for good.
    """
    for name in _same_topics(plan, created, present):
        yield Obstacle(
            kind=ObstacleKind.HELD,
            where=name,
            what=f"the restore {plan.restore_id} into it, by another command, has not finished",
            hint="run that command again; or delete the topic to give that restore up",
            fatal=True,
        )


def _same_topics(
    plan: RestorePlan, created: Mapping[str, str], present: Callable[[str], TopicState | None]
) -> Iterator[str]:
    """The targets of the plan that still exist under the ids that its restore used."""
    for target in (topic.target for topic in plan.topics):
        found, known = present(target.name), target.target_id or created.get(target.name)
        if found is not None and found.topic_id == known:
            yield target.name


def _refused(what: str, name: str) -> RefusedError:
    return RefusedError(
        f"the restore cannot be resumed: {what}",
        operation="resume a restore",
        object_name=name,
        hint="nothing was changed; delete the topic and restore it again, or restore under another name",
    )


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
    """True if the archive still holds all offsets; more of them do no harm."""
    found = {partition.source.partition: partition.source for partition in now.partitions}
    sources = (partition.source for partition in agreed.partitions)
    return all(
        source.partition in found
        and found[source.partition].asked_first <= source.asked_first
        and found[source.partition].asked_end >= source.asked_end
        for source in sources
    )

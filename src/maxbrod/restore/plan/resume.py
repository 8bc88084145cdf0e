"""Checks the target topics of a restore that was begun before, by this command or by another one.

How far each partition got is not decided here: the task reads that from the target's log (`restore.task`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.errors import RefusedError, TopicGoneError
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from maxbrod.kafka.state.cluster_state import TopicState
    from maxbrod.restore.plan.plan import RestorePlan
    from maxbrod.restore.plan.targets import TargetTopic


def check_topic(target: TargetTopic, present: TopicState | None, created_id: str | None, *, empty: bool) -> bool:
    """Whether the topic exists and the restore can write to it. `created_id` is the id that this restore gave it.

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

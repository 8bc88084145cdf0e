"""Which restore made a topic: found by the topic's id, or named. Its plan and report say what stands where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maxbrod.archive.selection import matches_nothing, select_topics
from maxbrod.compare.plan.pairs import Match
from maxbrod.errors import RefusedError, UsageError
from maxbrod.groups.run import find_restore
from maxbrod.restore.state import finished_restores, read_restore, read_topics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.archive.opening import Archive
    from maxbrod.compare.live import LiveCluster
    from maxbrod.compare.plan.pairs import CompareRequest
    from maxbrod.restore.plan.plan import RestorePlan, TopicPlan
    from maxbrod.restore.plan.sources import Source

_OPERATION = "compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTopic:
    """What a finished restore says of one of its topics."""

    plan: RestorePlan
    topic: TopicPlan
    target_id: str | None
    reports: Mapping[int, Mapping[str, Any]]
    """By partition."""


def restored_topics(archive: Archive, target: LiveCluster) -> list[RestoredTopic]:
    """Of all restores into this cluster that came to their end."""
    found = []
    for restore_id in finished_restores(archive.storage):
        plan, report = read_restore(archive.storage, restore_id)
        if plan.cluster_id == target.cluster_id:
            found += _topics_of(archive, plan, report)
    return found


def _topics_of(archive: Archive, plan: RestorePlan, report: Mapping[str, Any]) -> list[RestoredTopic]:
    created = read_topics(archive.storage, plan.restore_id)
    return [
        RestoredTopic(
            plan=plan,
            topic=topic,
            target_id=topic.target.target_id or created.get(topic.target.name),
            reports={each["partition"]: each for each in report["partitions"] if each["target"] == topic.target.name},
        )
        for topic in plan.topics
    ]


def restored_as(known: Sequence[RestoredTopic], target: LiveCluster, source: Source, name: str) -> RestoredTopic | None:
    """The one restore that made this very topic out of this source."""
    if target.topic(name) is None:
        return None
    mine = (source.topic_id, name, target.id_of(name))
    found = [each for each in known if (each.topic.target.topic_id, each.topic.target.name, each.target_id) == mine]
    if len(found) > 1:
        ids = ", ".join(each.plan.restore_id for each in found)
        raise UsageError(
            "several restores went into this topic", operation=_OPERATION, object_name=name, hint=f"--restore: {ids}"
        )
    return found[0] if found else None


def named_restore(archive: Archive, target: LiveCluster, request: CompareRequest) -> list[RestoredTopic]:
    restore_id = find_restore(finished_restores(archive.storage), request.restore)
    plan, report = read_restore(archive.storage, restore_id)
    if plan.cluster_id != target.cluster_id:
        raise RefusedError(
            f"it went into the cluster {plan.cluster_id}, and this is {target.cluster_id}",
            operation=_OPERATION,
            object_name=restore_id,
            hint="name the cluster that was restored into",
        )
    if request.match is not Match.AUTO:
        raise UsageError("how a restore placed its records is known", operation=_OPERATION, hint="leave out --offsets")
    known = {each.topic.target.source_topic: each for each in _topics_of(archive, plan, report)}
    names = select_topics(
        dict.fromkeys(known, False), request.selection.topics, request.selection.exclude, internal=True
    )
    if names.wrong is not None:
        raise matches_nothing(names.wrong, known, whose=f"restore {restore_id}")
    if not names.chosen:
        raise UsageError("it restored no topic that is asked for", object_name=restore_id)
    partitions = {each.source.partition for name in names.chosen for each in known[name].topic.partitions}
    for partition in sorted(request.selection.partitions - partitions):
        raise UsageError(f"no topic that is meant has a partition {partition}", object_name=restore_id)
    return [known[name] for name in names.chosen]

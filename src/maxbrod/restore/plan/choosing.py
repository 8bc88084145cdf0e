"""Which of the archive's topics a request means, and which incarnation of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.archive.selection import matches_nothing, select_topics
from maxbrod.restore.plan.rename import unused_rule

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from maxbrod.errors import UsageError
    from maxbrod.kafka.state.cluster_state import Group
    from maxbrod.restore.plan.request import RestoreRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The chosen incarnations, topic id to name. `missing` are names and ids that the archive does not have."""

    topics: Mapping[str, str]
    missing: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Internal topics of the archive, which are chosen only by name."""
    wrong: tuple[UsageError, ...] = ()
    """An error for each word without effect: missing names and ids, patterns without a match, unused rules."""


def choose_incarnations(request: RestoreRequest, archived: Mapping[str, str], newest: Container[str]) -> Chosen:
    """Choose from the archive's topics (id to name). `newest` are the ids that a name without an id stands for."""
    selection = select_topics(
        dict.fromkeys(archived.values(), False), request.topics, request.exclude, internal=request.internal
    )
    named = {archived[topic_id] for topic_id in request.topic_ids if topic_id in archived}
    names = set(selection.chosen)
    topics = {
        topic_id: name
        for topic_id, name in archived.items()
        if name in names and (topic_id in request.topic_ids if name in named else topic_id in newest)
    }
    named_elsewhere = {*(each.where.topic for each in request.ranges), *request.partition_counts} - set(topics.values())
    absent = [*selection.missing, *(request.topic_ids - archived.keys()), *named_elsewhere]
    missing = sorted(set(absent))
    known, meant = sorted(set(archived.values())), sorted(set(topics.values()))
    words = [*missing, *selection.unmatched, *selection.unused]
    rules = [unused_rule(each, meant) for each in request.rename.unused(meant)] if meant else []
    wrong = [*(matches_nothing(word, known) for word in words), *rules]
    every = select_topics(dict.fromkeys(archived.values(), False), request.topics, request.exclude, internal=True)
    return Chosen(
        topics=topics,
        missing=tuple(missing),
        left_out=tuple(sorted(set(every.chosen) - names)),
        wrong=tuple(wrong),
    )


def choose_groups(patterns: Sequence[str], groups: Iterable[Group]) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """The groups that match a pattern, none without patterns; and the names and patterns that match no group.

    `*` is not among the latter: without any group it is no mistake.
    """
    if not patterns:
        return (), ()
    known = {group.group_id: group for group in groups}
    selection = select_topics(dict.fromkeys(known, False), patterns, internal=True)
    return tuple(known[name] for name in selection.chosen), (*selection.missing, *selection.unmatched)

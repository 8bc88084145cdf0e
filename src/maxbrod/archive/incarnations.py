"""Resolves names to topics: patterns, close names, and the newest of several topics with one name. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.archive.selection import matches_nothing, select_topics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """A topic that was deleted and created again has another id and is another topic."""

    topic: str
    topic_id: str
    first_written_at: int


def incarnations_in(rows: pa.Table) -> list[Incarnation]:
    """The topics of some rows of a catalog, with the columns `topic`, `topic_id` and `written_at`."""
    found = rows.group_by("topic_id").aggregate([("topic", "max"), ("written_at", "min")]).to_pylist()
    return [
        Incarnation(topic=each["topic_max"], topic_id=each["topic_id"], first_written_at=each["written_at_min"])
        for each in found
    ]


def newest_ids(incarnations: Iterable[Incarnation], ranks: Mapping[str, int]) -> set[str]:
    """For each name the id that the cluster had last, by `Known.ranks`; without a rank, the one archived last."""
    newest: dict[str, Incarnation] = {}
    for incarnation in incarnations:
        other = newest.get(incarnation.topic)
        if other is None or _age(incarnation, ranks) > _age(other, ranks):
            newest[incarnation.topic] = incarnation
    return {each.topic_id for each in newest.values()}


def select_names(
    names: Iterable[str], patterns: Sequence[str], exclude: Sequence[str] = (), *, may_come: bool = False
) -> set[str]:
    """The names that match a pattern; without patterns, all. UsageError: a name or a pattern matches none.

    `may_come`: a pattern may match topics that do not exist yet.
    """
    known = sorted(names)
    selection = select_topics(dict.fromkeys(known, False), patterns, exclude, internal=True)
    wrong = next(iter(selection.missing), None) if may_come else selection.wrong
    if wrong is not None:
        raise matches_nothing(wrong, known)
    return set(selection.chosen)


def _age(each: Incarnation, ranks: Mapping[str, int]) -> tuple[int, int, str]:
    return ranks.get(each.topic_id, -1), each.first_written_at, each.topic_id

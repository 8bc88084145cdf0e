"""Which topics a name means: patterns, close names, and the newest of several that had one name. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.archive.selection import matches_nothing, select_topics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """A topic deleted and created again has another id, and is another topic."""

    topic: str
    topic_id: str
    first_written_at: int


def newest_ids(incarnations: Iterable[Incarnation], ranks: Mapping[str, int]) -> set[str]:
    """Of each name the id that the cluster had last, as `Known.ranks` has it; else the one that was archived last."""
    newest: dict[str, Incarnation] = {}
    for each in incarnations:
        other = newest.get(each.topic)
        if other is None or _age(each, ranks) > _age(other, ranks):
            newest[each.topic] = each
    return {each.topic_id for each in newest.values()}


def select_names(
    names: Iterable[str], patterns: Sequence[str], exclude: Sequence[str] = (), *, may_come: bool = False
) -> set[str]:
    """Those that match a pattern; all of them without one. UsageError: a name or a pattern means none of them.

    `may_come`: a pattern may be about topics that are not there yet.
    """
    known = sorted(names)
    selection = select_topics(dict.fromkeys(known, False), patterns, exclude, internal=True)
    wrong = next(iter(selection.missing), None) if may_come else selection.wrong
    if wrong is not None:
        raise matches_nothing(wrong, known)
    return set(selection.chosen)


def _age(each: Incarnation, ranks: Mapping[str, int]) -> tuple[int, int, str]:
    return ranks.get(each.topic_id, -1), each.first_written_at, each.topic_id

"""Which topics a name means: patterns, close names, and the newest of several that had one name. Pure."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.errors import UsageError
from maxbrod.planning.selection import select_topics

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


def select_names(names: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """Those that match a pattern; all of them without one. UsageError names a topic that is not there."""
    known = sorted(names)
    selection = select_topics(dict.fromkeys(known, False), patterns, internal=True)
    if selection.missing:
        raise unknown_topic(selection.missing[0], known)
    return set(selection.chosen)


def unknown_topic(name: str, known: Iterable[str]) -> UsageError:
    close = difflib.get_close_matches(name, list(known), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "see 'maxbrod ls'"
    return UsageError(f"the archive has no topic {name!r}", hint=hint)


def _age(each: Incarnation, ranks: Mapping[str, int]) -> tuple[int, int, str]:
    return ranks.get(each.topic_id, -1), each.first_written_at, each.topic_id

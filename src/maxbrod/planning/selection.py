"""Which topics a run is about: by name, glob or regular expression, included and excluded.

A name that no topic has is told, because somebody counts on it; a pattern that matches nothing is not.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_GLOB: Final = re.compile(r"[*?\[]")
_GLOB_SET: Final = re.compile(r"\[!?+\]?+[^\]]*\]")
_INTERNAL_PREFIX: Final = "__"
_HINT: Final = r"give a name, a glob such as orders-*, or a regular expression between slashes such as /orders-\d+/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Both in the order of names."""

    chosen: tuple[str, ...]
    missing: tuple[str, ...]
    """Names that were given in full and that no topic has."""


@dataclass(frozen=True, slots=True)
class _Patterns:
    names: frozenset[str]
    expressions: tuple[re.Pattern[str], ...]

    def match(self, topic: str) -> bool:
        return topic in self.names or any(expression.fullmatch(topic) for expression in self.expressions)


def select_topics(
    names: Mapping[str, bool], include: Iterable[str] = (), exclude: Iterable[str] = (), *, internal: bool = False
) -> Selection:
    """Of the cluster's topics (the name, and whether the broker calls it internal) those that are meant.

    Without `include`, all. What `exclude` matches stays out, however it was included. Internal topics, which are also
    those whose name begins with two underscores, come in with `internal`, or where one is named in full.
    """
    wanted, unwanted = _parse(include), _parse(exclude)
    wants_all = not wanted.names and not wanted.expressions

    def is_meant(topic: str) -> bool:
        if unwanted.match(topic):
            return False
        if not internal and topic not in wanted.names and (names[topic] or topic.startswith(_INTERNAL_PREFIX)):
            return False
        return wants_all or wanted.match(topic)

    return Selection(
        chosen=tuple(sorted(filter(is_meant, names))),
        missing=tuple(sorted(topic for topic in wanted.names - names.keys() if not unwanted.match(topic))),
    )


def _parse(patterns: Iterable[str]) -> _Patterns:
    names, expressions = [], []
    for pattern in patterns:
        if pattern.startswith("/") or not pattern:
            expressions.append(_expression(pattern))
        elif _GLOB.search(pattern):
            expressions.append(_glob(pattern))
        else:
            names.append(pattern)
    return _Patterns(frozenset(names), tuple(expressions))


def _expression(pattern: str) -> re.Pattern[str]:
    if len(pattern) < 3 or not pattern.endswith("/"):
        raise UsageError(f"{pattern!r} names no topic", operation="select topics", hint=_HINT)
    try:
        return re.compile(pattern[1:-1])
    except re.error as error:
        raise UsageError(
            f"{pattern!r} is no regular expression: {error}", operation="select topics", hint=_HINT
        ) from error


def _glob(pattern: str) -> re.Pattern[str]:
    # Python takes a bracket that nothing closes for a letter, which no topic's name has.
    if "[" in _GLOB_SET.sub("", pattern):
        raise UsageError(f"{pattern!r} opens a bracket that it does not close", operation="select topics", hint=_HINT)
    return re.compile(fnmatch.translate(pattern))

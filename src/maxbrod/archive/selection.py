"""Selects topics by name, glob or regular expression, and parses times and partitions as people write them. Pure.

A name or pattern that matches no topic is reported, because the user relies on it; this includes exclusions. Globs and
expressions match the whole name. Of several topics with one name, the newest is found here, too.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from maxbrod.errors import UsageError
from maxbrod.model import INT64_MAX
from maxbrod.text import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa


_GLOB: Final = re.compile(r"[*?\[]")
_GLOB_SET: Final = re.compile(r"\[!?+\]?+[^\]]*\]")
_INTERNAL_PREFIX: Final = "__"
_ALL: Final = "*"
"""Matches all topics, and is no mistake if there are none."""
_HINT: Final = r"give a name, a glob such as orders-*, or a regular expression between slashes such as /orders-\d+/"

PARTITIONS_MAX: Final = 100_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_MS: Final = re.compile(r"-?\d{1,19}", re.ASCII)
_TIME_HINT: Final = "give a time with its zone such as 2026-01-31T12:00:00Z, or milliseconds since 1970"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """Both in the order of names."""

    chosen: tuple[str, ...]
    missing: tuple[str, ...]
    """Full names that no topic has."""
    unmatched: tuple[str, ...] = ()
    """Patterns that no topic matches."""
    unused: tuple[str, ...] = ()
    """Names and patterns to exclude that match no topic."""

    @property
    def wrong(self) -> str | None:
        """The first name or pattern that matches nothing."""
        return next(iter((*self.missing, *self.unmatched, *self.unused)), None)


@dataclass(frozen=True, slots=True)
class _Patterns:
    names: frozenset[str]
    expressions: Mapping[str, re.Pattern[str]]
    """By the pattern as given."""

    def match(self, topic: str) -> bool:
        return topic in self.names or any(expression.fullmatch(topic) for expression in self.expressions.values())

    def unmatched(self, topics: Iterable[str]) -> list[str]:
        known = list(topics)
        return [
            word
            for word, expression in self.expressions.items()
            if word != _ALL and not any(map(expression.fullmatch, known))
        ]


def select_topics(
    names: Mapping[str, bool], include: Iterable[str] = (), exclude: Iterable[str] = (), *, internal: bool = False
) -> TopicSelection:
    """Select from topics, given by name and whether the broker calls them internal.

    Without `include`, all are selected. `exclude` takes precedence. Internal topics, and those whose name begins with
    two underscores, are selected only with `internal`, or if named in full.
    """
    wanted, unwanted = _parse(include), _parse(exclude)
    wants_all = not wanted.names and not wanted.expressions

    def is_meant(topic: str) -> bool:
        if unwanted.match(topic):
            return False
        if not internal and topic not in wanted.names and (names[topic] or topic.startswith(_INTERNAL_PREFIX)):
            return False
        return wants_all or wanted.match(topic)

    return TopicSelection(
        chosen=tuple(sorted(filter(is_meant, names))),
        missing=tuple(sorted(topic for topic in wanted.names - names.keys() if not unwanted.match(topic))),
        unmatched=tuple(sorted(wanted.unmatched(names))),
        unused=tuple(sorted([*(unwanted.names - names.keys() - wanted.names), *unwanted.unmatched(names)])),
    )


def has_patterns(include: Iterable[str]) -> bool:
    """True if a selection means topics that it does not name in full. Without words it means all."""
    wanted = _parse(include)
    return bool(wanted.expressions) or not wanted.names


def nearest(word: str, known: Iterable[str], *, see: str = "see 'maxbrod ls'") -> str:
    """A hint for a name or pattern that matches none of the known names."""
    names = list(known)
    if word.startswith("/"):
        with suppress(re.error):
            part = re.compile(word.strip("/"))
            found = next((name for name in names if part.search(name)), None)
            if found is not None:
                return f"expressions match the whole name, and this one matches a part of {found}: add .* where needed"
    return did_you_mean(word.strip("/*"), names, most=3) or see


def exact_word(name: str) -> str:
    """The word that selects the topic of this name and no other, whatever letters it has."""
    if name.startswith("/"):
        return f"/{re.escape(name)}/"
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


def matches_nothing(word: str, known: Iterable[str], *, what: str = "topic", whose: str = "the archive") -> UsageError:
    """The error for a name or pattern that matches none of the known names."""
    is_pattern = word.startswith("/") or _GLOB.search(word) is not None
    message = f"no {what} of {whose} matches {word!r}" if is_pattern else f"{whose} has no {what} {word!r}"
    return UsageError(message, hint=nearest(word, known))


def _parse(patterns: Iterable[str]) -> _Patterns:
    given = list(patterns)
    words = [word for word in given if word.startswith("/") or not word or _GLOB.search(word)]
    return _Patterns(frozenset(given) - frozenset(words), {word: _expression(word) for word in words})


def _expression(pattern: str) -> re.Pattern[str]:
    """The expression of a glob, or of a regular expression between slashes."""
    wrong = None
    if not pattern or pattern.startswith("/"):
        wrong = "names no topic" if len(pattern) < 3 or not pattern.endswith("/") else None
        expression = pattern[1:-1]
    else:
        # Python treats an unclosed bracket as a letter, which no topic name has.
        wrong = "opens a bracket that it does not close" if "[" in _GLOB_SET.sub("", pattern) else None
        expression = fnmatch.translate(pattern)
    try:
        compiled = re.compile("" if wrong else expression)
    except re.error as error:
        wrong = f"is not a regular expression: {error}"
    if wrong:
        raise UsageError(f"{pattern!r} {wrong}", operation="select topics", hint=_HINT)
    return compiled


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
        Incarnation(topic=row["topic_max"], topic_id=row["topic_id"], first_written_at=row["written_at_min"])
        for row in found
    ]


def newest_ids(incarnations: Iterable[Incarnation], ranks: Mapping[str, int]) -> set[str]:
    """For each name the id that the cluster had last, by `Known.ranks`; without a rank, the one archived last."""
    newest: dict[str, Incarnation] = {}
    for incarnation in incarnations:
        other = newest.get(incarnation.topic)
        if other is None or _age(incarnation, ranks) > _age(other, ranks):
            newest[incarnation.topic] = incarnation
    return {incarnation.topic_id for incarnation in newest.values()}


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


def _age(incarnation: Incarnation, ranks: Mapping[str, int]) -> tuple[int, int, str]:
    return ranks.get(incarnation.topic_id, -1), incarnation.first_written_at, incarnation.topic_id


def parse_time_ms(word: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601 with a zone. Rounded up, which is right for a first and for an end."""
    if _EPOCH_MS.fullmatch(word):
        found = int(word)
    else:
        try:
            time = datetime.fromisoformat(word)
        except ValueError:
            raise UsageError(f"{word!r} is not a time", hint=_TIME_HINT) from None
        if time.tzinfo is None:
            raise UsageError(f"the time {word!r} has no zone", hint="append Z for UTC, or an offset as +02:00")
        found = -((_EPOCH - time) // timedelta(milliseconds=1))
    if not -INT64_MAX <= found <= INT64_MAX:
        raise UsageError(f"no record can have the time {word!r}", hint=_TIME_HINT)
    return found


def parse_partitions(word: str) -> frozenset[int]:
    """Parse numbers and ranges, such as `0,3,8-11`."""
    found: set[int] = set()
    for part in word.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)
        if match is None or not (first := int(match[1])) <= (last := int(match[2] or match[1])) < PARTITIONS_MAX:
            raise UsageError(f"{word!r} names no partitions", hint="give numbers and ranges, such as 0,3,8-11")
        found.update(range(first, last + 1))
    return frozenset(found)

"""What a topic is called at the target: by a list of names, by expressions with groups, by prefix and suffix."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.archive.selection import nearest
from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OPERATION: Final = "read how topics are renamed"
_HINT: Final = r"give old=new, or /expression/replacement/ such as /prod-(.*)/test-\1/, which matches the whole name"
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """A name that is listed becomes what the list says, and nothing else is done to it.

    Of any other name, the first expression that matches all of it is applied; then prefix and suffix are added.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    expressions: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    suffix: str = ""

    def apply(self, topic: str) -> str:
        """The target's name; whether Kafka would have it is asked by the preflight."""
        if topic in self.names:
            return self.names[topic]
        matches = ((re.fullmatch(expression, topic), into) for expression, into in self.expressions)
        renamed = next((match.expand(into) for match, into in matches if match is not None), topic)
        return f"{self.prefix}{renamed}{self.suffix}"

    def unused(self, topics: Iterable[str]) -> tuple[str, ...]:
        """The rules, as `--rename` has them, that are about none of these topics."""
        known = set(topics)
        listed = [f"{old}={new}" for old, new in self.names.items() if old not in known]
        rules = ((expression, into) for expression, into in self.expressions)
        return (
            *listed,
            *(f"/{each}/{into}/" for each, into in rules if not any(re.fullmatch(each, topic) for topic in known)),
        )


def unused_rule(rule: str, topics: Iterable[str]) -> UsageError:
    """The error about a rule that is about none of the topics."""
    word = f"/{rule.split('/')[1]}/" if rule.startswith("/") else rule.partition("=")[0]
    hint = nearest(word, topics, see="name topics that are meant, or leave the rule out")
    return UsageError(f"--rename {rule} renames nothing: no topic that is meant matches it", hint=hint)


def parse_rename(words: Iterable[str] = (), *, prefix: str = "", suffix: str = "") -> Rename:
    """From the words of a command line. UsageError: a word that says nothing, or two that contradict each other."""
    names: dict[str, str] = {}
    expressions: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("/"):
            expressions.append(_expression(word))
            continue
        old, equals, new = word.partition("=")
        if not (equals and is_topic_name(old) and is_topic_name(new)):
            raise _unclear(word)
        if names.setdefault(old, new) != new:
            raise UsageError(f"{old} is given two names, {names[old]} and {new}", operation=_OPERATION, object_name=old)
    for affix in filter(None, (prefix, suffix)):
        if not _NAME.fullmatch(affix):
            raise UsageError(f"no topic's name can have {affix!r} in it", operation=_OPERATION, hint=_HINT)
    return Rename(names=names, expressions=tuple(expressions), prefix=prefix, suffix=suffix)


def is_topic_name(name: str) -> bool:
    """Kafka's own rule."""
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def _expression(word: str) -> tuple[str, str]:
    """No name has a slash, so that neither side needs one."""
    parts = word.split("/")
    if len(parts) != 4 or parts[0] or parts[3] or not parts[1]:
        raise _unclear(word)
    _, expression, replacement, _ = parts
    try:
        # Finds a group that the expression does not have, which would show only at the first topic that matches.
        re.compile(expression).sub(replacement, "")
    except (re.error, IndexError) as error:
        raise UsageError(f"{word!r} cannot be applied: {error}", operation=_OPERATION, hint=_HINT) from error
    return expression, replacement


def _unclear(word: str) -> UsageError:
    return UsageError(f"{word!r} does not say how a topic is renamed", operation=_OPERATION, hint=_HINT)

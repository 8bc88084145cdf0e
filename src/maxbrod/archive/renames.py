"""How topics are renamed: the words of `--rename`, `--prefix` and `--suffix`, and what they make of a name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from maxbrod.archive.selection import nearest
from maxbrod.errors import UsageError
from maxbrod.model import TOPIC_NAME, is_topic_name

_RENAMING: Final = "read how topics are renamed"
_HINT: Final = r"give old=new, or /expression/replacement/ such as /prod-(.*)/test-\1/, which matches the whole name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """A listed name becomes what the list says, and nothing else.

    To any other name the first expression that matches the whole name is applied; then prefix and suffix are added.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    expressions: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    suffix: str = ""

    def apply(self, topic: str) -> str:
        """The target's name. The preflight checks whether Kafka allows it."""
        if topic in self.names:
            return self.names[topic]
        matches = ((re.fullmatch(expression, topic), into) for expression, into in self.expressions)
        renamed = next((match.expand(into) for match, into in matches if match is not None), topic)
        return f"{self.prefix}{renamed}{self.suffix}"

    def unused(self, topics: Iterable[str]) -> tuple[str, ...]:
        """The rules, as in `--rename`, that match none of these topics."""
        known = set(topics)
        listed = [f"{old}={new}" for old, new in self.names.items() if old not in known]
        for expression, into in self.expressions:
            if not any(re.fullmatch(expression, topic) for topic in known):
                listed.append(f"/{expression}/{into}/")
        return tuple(listed)


def unused_rule(rule: str, topics: Iterable[str]) -> UsageError:
    """The error about a rule that matches none of the topics."""
    word = f"/{rule.split('/')[1]}/" if rule.startswith("/") else rule.partition("=")[0]
    hint = nearest(word, topics, see="name a chosen topic, or leave the rule out")
    return UsageError(f"--rename {rule} renames nothing: it matches no chosen topic", hint=hint)


def parse_rename(words: Iterable[str] = (), *, prefix: str = "", suffix: str = "") -> Rename:
    """The rules from words of the command line. UsageError: a word has no meaning, or two contradict each other."""
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
            raise UsageError(f"{old} is given two names, {names[old]} and {new}", operation=_RENAMING, object_name=old)
    for affix in filter(None, (prefix, suffix)):
        if not TOPIC_NAME.fullmatch(affix):
            raise UsageError(f"no topic's name can have {affix!r} in it", operation=_RENAMING, hint=_HINT)
    return Rename(names=names, expressions=tuple(expressions), prefix=prefix, suffix=suffix)


def _expression(word: str) -> tuple[str, str]:
    """Topic names have no slash, so neither side needs one."""
    parts = word.split("/")
    if len(parts) != 4 or parts[0] or parts[3] or not parts[1]:
        raise _unclear(word)
    _, expression, replacement, _ = parts
    try:
        # Finds references to groups that the expression does not have, before the first topic matches.
        re.compile(expression).sub(replacement, "")
    except (re.error, IndexError) as error:
        raise UsageError(f"{word!r} cannot be applied: {error}", operation=_RENAMING, hint=_HINT) from error
    return expression, replacement


def _unclear(word: str) -> UsageError:
    return UsageError(f"{word!r} is not a rule for renaming topics", operation=_RENAMING, hint=_HINT)

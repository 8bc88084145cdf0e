"""Parses how keys and values are decoded: FORMAT for all topics, or TOPIC=FORMAT for one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from maxbrod.errors import UsageError

BYTES: Final = "bytes"
UTF8: Final = "utf8"
JSON: Final = "json"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
CONFLUENT: Final = "confluent"
_HINT: Final = (
    "give bytes, utf8, json, json:COLUMNS or json:FILE, avro:FILE, protobuf:FILE#MESSAGE or confluent, "
    "with TOPIC= before it for one topic alone"
)
_TOPIC: Final = re.compile(r"([A-Za-z0-9._-]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    kind: str
    argument: str = ""

    @property
    def of_topic(self) -> bool:
        """True if the type of the decoded column depends on the topic."""
        return self.kind == CONFLUENT or (self.kind == JSON and not self.argument)


def parse_formats(words: Iterable[str]) -> dict[str | None, Format]:
    """Formats by topic; None stands for all other topics. UsageError: an unknown format, or two for one topic."""
    found: dict[str | None, Format] = {}
    for word in words:
        named = _TOPIC.fullmatch(word)
        topic, format_word = (named[1], named[2]) if named else (None, word)
        if topic in found:
            raise UsageError(f"two formats are given for {topic or 'all topics'}", operation="decode", hint=_HINT)
        found[topic] = parse_format(format_word)
    return found


def parse_format(word: str) -> Format:
    kind, colon, argument = word.partition(":")
    if kind in {BYTES, UTF8, CONFLUENT} and not colon:
        return Format(kind=kind)
    if (kind == JSON and (argument or not colon)) or (kind == AVRO and argument):
        return Format(kind=kind, argument=argument)
    if kind == PROTOBUF and re.fullmatch(r"[^#]+#[\w.]+", argument):
        return Format(kind=kind, argument=argument)
    raise UsageError(f"there is no format {word!r}", operation="decode", hint=_HINT)


def format_of(formats: Mapping[str | None, Format], topic: str | None) -> Format:
    return formats.get(topic, formats.get(None, Format(kind=BYTES)))

"""The map of schema ids of one topic, for the tasks that write its records or compare them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from maxbrod.archive.selection import select_topics
from maxbrod.batch.schema_ids import Framing, SchemaIdMap
from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.registry.model import RegistryState

PARTS: Final = ("key", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedSchemas:
    """The ids and GUIDs of captured schemas in the target."""

    ids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By context and captured id."""
    guids: Mapping[str, str] = field(default_factory=dict)
    registered: int = 0
    present: int = 0


def unique_ids(mapped: MappedSchemas) -> dict[int, int]:
    """The ids without their contexts: a record does not say which context its id is of.

    An id that means different schemas in several contexts is left out, so that its records are refused.
    """
    found: dict[int, set[int]] = {}
    for (_, old), new in mapped.ids.items():
        found.setdefault(old, set()).add(new)
    return {old: next(iter(new)) for old, new in found.items() if len(new) == 1}


def parse_part(word: str) -> tuple[str, tuple[str, ...]]:
    """`topic`, `topic:key` or `topic:value`: the pattern of topics, and the parts."""
    pattern, colon, part = word.rpartition(":")
    if not colon:
        return word, PARTS
    if part not in PARTS or not pattern:
        raise UsageError(
            f"{word!r} names neither a topic nor its keys or values", hint="give TOPIC, TOPIC:key or TOPIC:value"
        )
    return pattern, (part,)


def framing_of(
    topic: str, part: str, subjects: Iterable[str], framed: Iterable[str], unframed: Iterable[str]
) -> Framing:
    """What is known about the keys or values of a topic: what the user says, else by the subject of its name."""
    if _names(unframed, topic, part):
        return Framing.UNFRAMED
    if _names(framed, topic, part):
        return Framing.FRAMED
    wanted = f"{topic}-{part}"
    known = any(subject == wanted or (subject[:2] == ":." and subject.endswith(f":{wanted}")) for subject in subjects)
    return Framing.FRAMED if known else Framing.UNKNOWN


def _names(words: Iterable[str], topic: str, part: str) -> bool:
    patterns = [pattern for pattern, parts in map(parse_part, words) if part in parts]
    return bool(patterns) and bool(select_topics({topic: False}, patterns, internal=True).chosen)


def encode_mapped(
    mapped: MappedSchemas, archived: RegistryState, framed: Iterable[str], unframed: Iterable[str]
) -> dict[str, Any]:
    """Plain JSON, for the state of a restore: all that later attempts and comparisons need to know."""
    return {
        "ids": [[context, old, new] for (context, old), new in sorted(mapped.ids.items())],
        "guids": dict(sorted(mapped.guids.items())),
        "subjects": list(dict.fromkeys(version.subject for version in archived.known)),
        "framed": list(framed),
        "unframed": list(unframed),
        "registered": mapped.registered,
        "present": mapped.present,
    }


def decode_mapped(document: Mapping[str, Any]) -> MappedSchemas:
    """The inverse of `encode_mapped`. CorruptDataError: it is none."""
    try:
        return MappedSchemas(
            ids={(str(context), int(old)): int(new) for context, old, new in document["ids"]},
            guids={str(old): str(new) for old, new in document["guids"].items()},
            registered=int(document["registered"]),
            present=int(document["present"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(f"the map of schema ids cannot be read: {error!r}") from error


def map_for(document: Mapping[str, Any], topic: str) -> SchemaIdMap | None:
    """The map for the records of a topic of the archive; None: it has no schema ids, or all stay as they are."""
    mapped = decode_mapped(document)
    words = document["subjects"], document["framed"], document["unframed"]
    key, value = (framing_of(topic, part, *words) for part in PARTS)
    ids = unique_ids(mapped)
    guids = {UUID(old).bytes: UUID(new).bytes for old, new in mapped.guids.items()}
    same = all(old == new for old, new in ids.items()) and all(old == new for old, new in guids.items())
    whole = len(ids) == len({old for _, old in mapped.ids})
    if (same and whole and ids) or (key is Framing.UNFRAMED and value is Framing.UNFRAMED):
        return None
    return SchemaIdMap(ids=ids, guids=guids, key=key, value=value)

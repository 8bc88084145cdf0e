"""The names of objects of the native layout. A name is never used twice, and none leads out of its folder."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

from maxbrod.errors import UsageError

SEGMENTS: Final = "segments"
PACKS: Final = "packs"

_PLAIN: Final = ".log"
_FRAMED: Final = ".log.zst"
_NONCE_BYTES: Final = 8
_NAME_MAX: Final = 249  # Kafka's own bound of a topic's name
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_OFFSET_MAX: Final = (1 << 63) - 1
_SEGMENT: Final = re.compile(
    rf"{SEGMENTS}/(?P<topic>[a-zA-Z0-9._-]+)/(?P<topic_id>[a-zA-Z0-9._-]+)/(?P<partition>[0-9]{{1,10}})"
    rf"/(?P<base>[0-9]{{20}})-[a-zA-Z0-9._-]+?\.log(\.zst)?"
)
_PACK: Final = re.compile(rf"{PACKS}/(?P<run>[a-zA-Z0-9._-]+)-[a-zA-Z0-9._]+?\.log(\.zst)?")


def segment_path(
    *, topic: str, topic_id: str, partition: int, base_offset: int, nonce: str | None = None, framed: bool
) -> str:
    """The name of a segment of one partition. Names of a partition's segments sort by offset."""
    if partition < 0 or not 0 <= base_offset <= _OFFSET_MAX:
        raise UsageError(f"partition {partition} at offset {base_offset} is invalid", object_name=topic)
    parts = (SEGMENTS, _checked("topic", topic), _checked("topic id", topic_id), str(partition))
    return "/".join((*parts, f"{base_offset:020d}-{_nonce(nonce)}{_ending(framed)}"))


def pack_path(*, run_id: str, nonce: str | None = None, framed: bool) -> str:
    """The name of a pack: slices of many partitions that one task of a run has written."""
    return f"{PACKS}/{_checked('run id', run_id)}-{_nonce(nonce)}{_ending(framed)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentName:
    """What the name of a segment says."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int


def parse_segment_path(path: str) -> SegmentName | None:
    """The inverse of `segment_path`; None if the object is not a segment."""
    found = _SEGMENT.fullmatch(path)
    if found is None:
        return None
    return SegmentName(
        topic=found["topic"],
        topic_id=found["topic_id"],
        partition=int(found["partition"]),
        base_offset=int(found["base"]),
    )


def run_of_pack(path: str) -> str | None:
    """The run that wrote a pack; None if the object is not a pack."""
    found = _PACK.fullmatch(path)
    return None if found is None else found["run"]


def is_framed(path: str) -> bool:
    """Whether the log is in zstd frames. UsageError: the object is not a log."""
    if path.endswith(_FRAMED):
        return True
    if path.endswith(_PLAIN):
        return False
    raise UsageError(f"{path} is not a segment of the native layout", hint=f"segments end in {_PLAIN} or {_FRAMED}")


def check_topic(name: str) -> None:
    """UsageError: a topic cannot have this name."""
    _checked("topic", name)


def new_nonce() -> str:
    return secrets.token_hex(_NONCE_BYTES)


def _nonce(nonce: str | None) -> str:
    return new_nonce() if nonce is None else _checked("nonce", nonce)


def _ending(framed: bool) -> str:  # noqa: FBT001 - its only argument
    return _FRAMED if framed else _PLAIN


def _checked(noun: str, name: str) -> str:
    """The name, if Kafka allows it: another one, even from a broker, could lead out of its folder."""
    if len(name) <= _NAME_MAX and _NAME.fullmatch(name) and name not in {".", ".."}:
        return name
    raise UsageError(
        f"{name!r} cannot be a {noun}",
        hint=f"it has 1 to {_NAME_MAX} of the characters a-z, A-Z, 0-9, '.', '_' and '-', and is not '.' or '..'",
    )

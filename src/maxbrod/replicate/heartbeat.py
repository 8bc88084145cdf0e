"""Heartbeats of egress in the archive: where the source's logs ended at a time, also if nothing was written.

With them the destination knows its lag without reaching the source: the newest heartbeat says how many records it
lacks, and the newest one whose ends it has reached says up to which moment it has everything. Older ones are thinned
out, so that few objects reach far back.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod import strict_json
from maxbrod.archive.signs_of_life import HEARTBEATS, thinned
from maxbrod.errors import CorruptDataError, ForbiddenError, ObjectNotFoundError
from maxbrod.model import PartitionId

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

_FORMAT: Final = "maxbrod.heartbeat"
_READ_MAX: Final = 64
BEAT_EVERY_S: Final = 5.0
"""With a shorter interval not every one gets a heartbeat."""
STALE_MS: Final = 30_000
"""An egress that works, at its default interval, has written three since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    at_ms: int
    """Taken before the ends were asked for, so that everything written before it is below them."""
    instance: str
    cluster_id: str
    ends: Mapping[PartitionId, int]


def encode(beat: Heartbeat) -> bytes:
    topics: dict[str, dict[str, int]] = {}
    for each, end in sorted(beat.ends.items()):
        topics.setdefault(each.topic_id, {})[str(each.partition)] = end
    document = {_FORMAT: 1, **asdict(replace(beat, ends={})), "ends": topics}
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def decode(data: bytes, object_name: str) -> Heartbeat:
    try:
        document: dict[str, Any] = strict_json.parse(data)
        if document[_FORMAT] != 1:
            raise CorruptDataError(f"the heartbeat has the version {document[_FORMAT]!r}", object_name=object_name)
        ends = {
            PartitionId(topic_id=topic_id, partition=int(number)): int(end)
            for topic_id, each in document["ends"].items()
            for number, end in each.items()
        }
        return Heartbeat(
            at_ms=int(document["at_ms"]),
            instance=str(document["instance"]),
            cluster_id=str(document["cluster_id"]),
            ends=ends,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError("this is not a heartbeat", object_name=object_name) from error


def write_heartbeat(storage: Storage, beat: Heartbeat) -> None:
    """Write one, and delete those that are no longer needed."""
    with suppress(ForbiddenError):  # another instance's of the same millisecond, and nothing may be overwritten
        storage.replace(f"{HEARTBEATS}/{beat.at_ms:013d}.json", encode(beat))
    names = {each.path: each.path.rpartition("/")[2].partition(".")[0] for each in storage.list(HEARTBEATS)}
    paths = {int(name) if name.isdigit() else 0: path for path, name in names.items()}
    kept = thinned(paths)
    if gone := [path for at_ms, path in paths.items() if at_ms not in kept]:
        storage.delete(gone)


class Heartbeats:
    """The heartbeats of an archive. Each object is read once."""

    def __init__(self, every_s: float = 0.0) -> None:
        """Look again after this time, and not before."""
        self._every_s = every_s
        self._known: dict[str, Heartbeat] = {}
        self._looked_at = -math.inf

    def read(self, storage: Storage) -> list[Heartbeat]:
        """Newest first. A copy of an archive may lack some, or have some half-copied: those are left out."""
        if time.monotonic() - self._looked_at >= self._every_s:
            self._look(storage)
            self._looked_at = time.monotonic()
        return [self._known[path] for path in sorted(self._known, reverse=True)]

    def _look(self, storage: Storage) -> None:
        paths = sorted((each.path for each in storage.list(HEARTBEATS)), reverse=True)[:_READ_MAX]
        self._known = {path: beat for path, beat in self._known.items() if path in paths}
        for path in paths:
            if path not in self._known:
                with suppress(CorruptDataError, ObjectNotFoundError):
                    self._known[path] = decode(bytes(storage.get(path)), storage.name_of(path))


def read_heartbeats(storage: Storage) -> list[Heartbeat]:
    """All of them, newest first."""
    return Heartbeats().read(storage)


def proven_at_ms(beats: Sequence[Heartbeat], partition: PartitionId, end: int) -> int | None:
    """The newest moment up to which a destination that ends at `end` has everything; None: none is known.

    `beats` are newest first. A partition that a heartbeat does not know was created later, so it says nothing.
    """
    return next((beat.at_ms for beat in beats if beat.ends.get(partition, end + 1) <= end), None)

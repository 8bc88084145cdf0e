"""The names of objects of this layout: `<folder>/<topic>/<partition>/<level>/<range>`.

The folder is a configurable prefix (`data` by default) and the region. A storage that is opened at a region's own
folder has neither: then only the footers contain the region.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from maxbrod.errors import UsageError
from maxbrod.model import TopicPartition

PREFIX: Final = "data"
REGION: Final = "local"
"""Our default region. The tool has none."""
STREAMING: Final = 0
"""The level of segments written from a topic; compaction creates higher ones."""

_NAME: Final = re.compile(
    r"(?:(?P<folder>(?:.*/)?(?P<region>[^/]+))/)?"
    r"(?P<topic>[a-zA-Z0-9._-]{1,249})/(?P<partition>0|[1-9][0-9]{0,9})/(?P<level>0|[1-9][0-9]{0,9})/"
    r"(?P<start>[0-9]{20})-(?P<end>[0-9]{20})"
)
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_REGION: Final = re.compile(r"[a-zA-Z0-9._-]{1,64}")
_INT32_MAX: Final = (1 << 31) - 1
_UINT32_MAX: Final = (1 << 32) - 1
OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentName:
    """`start` and `end` are the offsets of the first and the last record, both inclusive."""

    folder: str
    """Everything before the topic; empty if the storage is a region's own folder."""
    where: TopicPartition
    level: int
    start: int
    end: int

    @property
    def region(self) -> str | None:
        """The region; None if the name does not contain it."""
        return self.folder.rpartition("/")[2] or None

    @property
    def path(self) -> str:
        parts = (self.where.topic, str(self.where.partition), str(self.level), f"{self.start:020d}-{self.end:020d}")
        return "/".join((self.folder, *parts) if self.folder else parts)


def parse_name(path: str) -> SegmentName | None:
    """The parts of a name; None if it is not that of a segment."""
    found = _NAME.fullmatch(path)
    if found is None:
        return None
    partition, level, start, end = (int(found[part]) for part in ("partition", "level", "start", "end"))
    if found["topic"] in {".", ".."} or partition > _INT32_MAX or level > _UINT32_MAX or not start <= end < OFFSET_MAX:
        return None
    where = TopicPartition(topic=found["topic"], partition=partition)
    return SegmentName(folder=found["folder"] or "", where=where, level=level, start=start, end=end)


def region_folder(region: str, prefix: str = PREFIX) -> str:
    """The folder of a region's segments."""
    if _REGION.fullmatch(region) is None or region in {".", ".."}:
        raise UsageError(
            f"{region!r} cannot be a region", hint="it has 1 to 64 of the characters a-z, A-Z, 0-9, '.', '_' and '-'"
        )
    parts = prefix.split("/") if prefix else []
    if any(_TOPIC.fullmatch(part) is None or part in {".", ".."} for part in parts):
        raise UsageError(f"{prefix!r} cannot be the folder of a tree", hint="it is a relative path, such as data")
    return "/".join((*parts, region))


def check_topic(topic: str) -> str:
    """The same topic, or UsageError: a name that Kafka does not allow could lead out of its folder."""
    if _TOPIC.fullmatch(topic) is None or topic in {".", ".."}:
        raise UsageError(f"{topic!r} cannot be a topic")
    return topic

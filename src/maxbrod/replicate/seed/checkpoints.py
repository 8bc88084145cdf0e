"""The checkpoint topic: how far each partition of a source is at the destination.

Memory follows the topic, never the other way round: a checkpoint counts when its record is durable. Of several
checkpoints of a partition the highest one counts, in whatever order they are read.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from maxbrod.errors import MaxbrodError
from maxbrod.layouts.parquet.events import Checkpoint, decode_checkpoint

if TYPE_CHECKING:
    from maxbrod.replicate.seed.control_topics import ControlTopic

_LOG: Final = logging.getLogger(__name__)


class Source(NamedTuple):
    """A partition of a topic of a region."""

    region: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.region}/{self.topic}-{self.partition}"


def checkpoint_partition(key: bytes, partitions: int) -> int:
    """The partition of the checkpoint topic that librdkafka's default partitioner chooses for a key."""
    return crc32(key) % partitions


class Checkpoints:
    """The checkpoints of all sources. May be used by several threads."""

    def __init__(self, topic: ControlTopic) -> None:
        self._topic = topic
        self._reading = threading.Lock()
        self._offsets: dict[Source, int] = {}
        self._changing = threading.Lock()

    def refresh(self, *, settled: bool = False) -> None:
        """Read what is new; with `settled`, also what transactions that are open now commit."""
        with self._reading:
            for record in self._topic.new_records(settled=settled):
                if not record.value:
                    continue  # a tombstone does not take a position back
                try:
                    checkpoint = decode_checkpoint(record.value)
                except MaxbrodError as error:
                    _LOG.warning("a record of %s is not a checkpoint: %s", self._topic.name, error)
                    continue
                self.saved(checkpoint)

    def saved(self, checkpoint: Checkpoint) -> None:
        """The record of this checkpoint is durable."""
        source = Source(checkpoint.region, checkpoint.topic, checkpoint.partition)
        with self._changing:
            self._offsets[source] = max(checkpoint.offset, self._offsets.get(source, -1))

    def offset(self, source: Source) -> int | None:
        """The last offset that is at the destination."""
        return self._offsets.get(source)

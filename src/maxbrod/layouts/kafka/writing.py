"""Writes a native archive in a task: segments of single partitions, and packs that small partitions share.

Readers of the catalog see nothing before its rows are committed, and nothing is committed here. If the `with` block
ends without an error, everything is durable. If it ends in an error, open objects never become visible, and objects
that were complete before are garbage that no row names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from maxbrod.layouts.kafka.compression import Compression
from maxbrod.layouts.kafka.objects import Objects
from maxbrod.layouts.kafka.partition import How, PartitionName, PartitionWriter
from maxbrod.layouts.kafka.slices import SegmentLimits
from maxbrod.layouts.kafka.unpacking import Unpacker

if TYPE_CHECKING:
    from types import TracebackType

    from maxbrod.batch.looking import Look
    from maxbrod.storage.interface import Storage


class ArchiveWriter:
    """The writer of one task. Uses a few megabytes of memory for any amount of data."""

    def __init__(
        self,
        storage: Storage,
        *,
        run_id: str,
        compression: Compression | None = None,
        limits: SegmentLimits | None = None,
        exact_timestamps: bool = False,
        look: Look | None = None,
    ) -> None:
        """`exact_timestamps` reads every record for the lowest timestamp, as `zstd` does; `look` for a limited time."""
        self._objects = Objects(storage, run_id)
        self._how = How(
            compression=compression or Compression(),
            limits=limits or SegmentLimits(),
            exact_timestamps=exact_timestamps,
            look=look,
            unpacker=Unpacker(),
        )
        self._partitions: list[PartitionWriter] = []

    def partition(
        self, *, topic: str, topic_id: str, partition: int, packed: bool, every_hole: bool = False
    ) -> PartitionWriter:
        """`packed`: its slices go into packs that it shares with the other partitions of the task.

        `every_hole`: a hole of any width ends a slice. If no hole is expected, each one needs a row of its own.
        """
        name = PartitionName(topic=topic, topic_id=topic_id, partition=partition)
        limits = replace(self._how.limits, hole_offsets_min=1) if every_hole else self._how.limits
        writer = PartitionWriter(name, self._objects, replace(self._how, limits=limits), packed=packed)
        self._partitions.append(writer)
        return writer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for partition in self._partitions:
                    partition.close()
                self._objects.commit_all()
        finally:
            self._objects.abort_all()

"""The native archive as a task writes it: segments of single partitions, and packs that small ones share.

Nothing is visible to a reader of the catalog before its rows are committed, and nothing is committed here. When the
block ends well everything is durable; when it ends in an error nothing that was open ever becomes visible, and what
was complete before is garbage that no row names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maxbrod.layouts.kafka.compression import Compression
from maxbrod.layouts.kafka.objects import Objects
from maxbrod.layouts.kafka.partition import How, PartitionName, PartitionWriter
from maxbrod.layouts.kafka.slices import SegmentLimits
from maxbrod.layouts.kafka.unpacking import Unpacker

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from maxbrod.batch.looking import Look
    from maxbrod.storage.interface import Storage


class ArchiveWriter:
    """One for each task. Holds a few megabytes, whatever passes through it."""

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
        """`exact_timestamps` looks into every record for the lowest, as is done with `zstd`; `look` while it lasts."""
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
        """`packed`: its slices go into objects that it shares with the others of this task.

        `every_hole` ends a slice, however narrow it is: where no hole is expected each wants a row of its own.
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

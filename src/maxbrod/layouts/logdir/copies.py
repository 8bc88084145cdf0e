"""Copies of one partition on several disks, each loaded as its broker would load it, and how far they agree.

Two copies that hold an offset under the same leader epoch hold the same record there, because only one leader writes
in an epoch. Copies are therefore compared by their epochs alone.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from maxbrod.layouts.logdir.checkpoints import (
    CLEANED,
    HIGH_WATERMARKS,
    LOG_STARTS,
    read_epochs,
    read_offsets,
    read_topic_id,
)
from maxbrod.layouts.logdir.ends import scan_ends
from maxbrod.layouts.logdir.names import EPOCHS, METADATA, LogFile, PartitionFolder, Tree
from maxbrod.layouts.logdir.scanning import ScannedLog, scan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.foreign import Fault
    from maxbrod.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A partition in one log directory. Logs are in order, as a broker would load them."""

    folder: PartitionFolder
    logs: tuple[ScannedLog, ...]
    topic_id: str | None = None
    epochs: tuple[tuple[int, int], ...] = field(default=())
    """Epochs and their first offsets, as the broker has recorded them, otherwise as in the batches."""
    high_watermark: int | None = None
    log_start: int = 0
    cleaned: int = 0
    """The offset up to which the cleaner has compacted it."""

    @property
    def start(self) -> int:
        """The first offset that it holds."""
        return max(next((log.base_offset for log in self.logs if not log.empty), self.end), self.log_start)

    @property
    def end(self) -> int:
        return max((log.end_offset for log in self.logs), default=self.log_start)

    @property
    def last_epoch(self) -> int:
        return max((epoch for log in self.logs for epoch, _ in log.epochs), default=-1)


def lineage(noted: Sequence[tuple[int, int]], logs: Sequence[ScannedLog], end: int) -> tuple[tuple[int, int], ...]:
    """Epochs and their first offsets. The broker's notes count, too: compaction may have removed the first batches."""
    starts = {epoch: start for epoch, start in noted if start < end}
    for log in logs:
        for epoch, start in log.epochs:
            starts[epoch] = min(starts.get(epoch, start), start)
    return tuple(sorted(starts.items(), key=lambda item: item[1]))


def swapped(logs: Sequence[ScannedLog]) -> list[ScannedLog]:
    """The logs without those that a finished cleaning was about to replace, as a broker starts."""
    swaps = [log for log in logs if log.file.swap]
    if not swaps:
        return list(logs)
    low = min(swap.file.base_offset for swap in swaps)
    high = max(swap.end_offset for swap in swaps)
    return [log for log in logs if log.file.swap or not low <= log.file.base_offset < max(high, low + 1)]


def furthest(copies: Sequence[Copy]) -> Copy:
    """The copy that an election among all of them must choose: the longest one of the latest epoch."""
    return max(copies, key=lambda each: (each.last_epoch, each.end, each.high_watermark or 0, -each.start))


def agreed_until(copy: Copy, chosen: Copy) -> int:
    """The first offset that the copy holds under another epoch than the chosen one or after its end; else its end."""
    low, high = max(copy.start, chosen.start), min(copy.end, chosen.end)
    edges = {low, *(start for each in (copy, chosen) for _, start in each.epochs if low < start < high)}
    for edge in sorted(edges):
        if edge < high and _epoch_at(copy, edge) != _epoch_at(chosen, edge):
            return edge
    return copy.end if copy.end <= chosen.end else max(high, low)


def _epoch_at(copy: Copy, offset: int) -> int:
    before = bisect_right(copy.epochs, offset, key=lambda each: each[1])
    return copy.epochs[before - 1][0] if before else -1


class Notes:
    """The checkpoints of brokers: an offset for each partition, by file and log directory."""

    def __init__(self, storage: Storage, tree: Tree, faults: list[Fault]) -> None:
        self._noted = {
            name: {
                root: read_offsets(storage, f"{root}{name}", faults) if name in names else {}
                for root, names in tree.roots.items()
            }
            for name in (HIGH_WATERMARKS, LOG_STARTS, CLEANED)
        }

    def of(self, name: str, folder: PartitionFolder) -> int | None:
        return self._noted[name][folder.root].get(folder.where)


def load_copy(
    storage: Storage, folder: PartitionFolder, notes: Notes, *, check_crc: bool = True
) -> tuple[Copy, list[Fault]]:
    faults: list[Fault] = []
    cleaned = notes.of(CLEANED, folder) or 0
    noted = read_epochs(storage, f"{folder.path}/{EPOCHS}", faults) if EPOCHS in folder.names else []
    if check_crc or cleaned:
        logs = [scan(storage, each, check_crc=check_crc) for each in folder.loaded()]
    else:
        logs = _scan_some(storage, folder, noted)
    logs = sorted(swapped(logs), key=lambda each: each.file.base_offset)
    known = read_topic_id(storage, f"{folder.path}/{METADATA}", faults) if METADATA in folder.names else None
    end = max((log.end_offset for log in logs), default=0)
    copy = Copy(
        folder=folder,
        logs=tuple(logs),
        topic_id=known,
        epochs=lineage(noted, logs, end),
        high_watermark=notes.of(HIGH_WATERMARKS, folder),
        log_start=notes.of(LOG_STARTS, folder) or 0,
        cleaned=cleaned,
    )
    return copy, faults


def _scan_some(storage: Storage, folder: PartitionFolder, noted: Sequence[tuple[int, int]]) -> list[ScannedLog]:
    """The logs without their checksums, and without the middle of large files if nothing is to be seen there."""
    ends = {each.path: scan_ends(storage, each, noted) for each in folder.loaded() if _index_of(each) in folder.names}
    logs = [ends.get(each.path) or scan(storage, each, check_crc=False) for each in folder.loaded()]
    # A transaction may continue in the next file. A gap between two files is explained by holes within the first.
    apart = any(before.end_offset != after.base_offset for before, after in pairwise(logs))
    if apart or any(log.events for log in logs):
        return [log if log.middle_read else scan(storage, log.file, check_crc=False) for log in logs]
    return logs


def _index_of(file: LogFile) -> str:
    return f"{file.path.rpartition('/')[2].removesuffix('.log')}.index"

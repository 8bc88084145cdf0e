"""One directory's copy of a partition, loaded as its broker would load it: logs, epochs, and what was noted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.logdir.checkpoints import (
    CLEANED,
    HIGH_WATERMARKS,
    LOG_STARTS,
    read_epochs,
    read_offsets,
    read_topic_id,
)
from maxbrod.layouts.logdir.copies import Copy, lineage, swapped
from maxbrod.layouts.logdir.names import EPOCHS, METADATA
from maxbrod.layouts.logdir.scanning import scan

if TYPE_CHECKING:
    from maxbrod.layouts.foreign import Fault
    from maxbrod.layouts.logdir.names import PartitionFolder, Tree
    from maxbrod.storage.interface import Storage


class Notes:
    """What brokers have noted for all partitions of each log directory."""

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
    logs = swapped([scan(storage, each, check_crc=check_crc) for each in folder.loaded()])
    logs.sort(key=lambda each: each.file.base_offset)
    noted = read_epochs(storage, f"{folder.path}/{EPOCHS}", faults) if EPOCHS in folder.names else []
    known = read_topic_id(storage, f"{folder.path}/{METADATA}", faults) if METADATA in folder.names else None
    end = max((each.end_offset for each in logs), default=0)
    copy = Copy(
        folder=folder,
        logs=tuple(logs),
        topic_id=known,
        epochs=lineage(noted, logs, end),
        high_watermark=notes.of(HIGH_WATERMARKS, folder),
        log_start=notes.of(LOG_STARTS, folder) or 0,
        cleaned=notes.of(CLEANED, folder) or 0,
    )
    return copy, faults

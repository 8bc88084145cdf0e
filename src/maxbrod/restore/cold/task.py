"""One task that writes partitions into log directories: reads slices, checks them, and writes them in order.

Every attempt writes into folders of its own. Brokers ignore them until the driver puts them in place.
"""

from __future__ import annotations

import shutil
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders
from maxbrod.errors import MaxbrodError, naming
from maxbrod.layouts.kafka.format import Slice  # noqa: TC001 - pydantic reads the types of fields
from maxbrod.layouts.logdir.installation import stage
from maxbrod.layouts.logdir.writer import LogWriter, WrittenLog
from maxbrod.layouts.reader import read_logs
from maxbrod.model import TopicPartition  # noqa: TC001 - pydantic reads the types of fields
from maxbrod.storage.failures import translate_os
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from maxbrod.config import StorageConfig
    from maxbrod.model import AbortedTransaction
    from maxbrod.storage.interface import Storage

_EPOCH: Final = slice(12, 16)
"""The place of the leader epoch in a batch of magic 2. The checksum covers only what follows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdSettings:
    """The values that all tasks share. Holds secrets."""

    restore_id: str
    archive_url: str
    storage: StorageConfig = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdItem:
    """One target partition, and the directories to write it to."""

    where: TopicPartition
    directories: tuple[str, ...]
    start: int
    """The start of its log."""
    end: int
    """The end of its log. No batch reaches beyond it."""
    epoch_max: int | None
    """Higher leader epochs are lowered to this one; None: they stay."""
    segment_bytes: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdWritten:
    """The outcome of an item: the staged folder in each directory, or why there is none."""

    where: TopicPartition
    folders: dict[str, str]
    log: WrittenLog | None
    batches_lowered: int = 0
    failure: MaxbrodError | None = None


def run_cold_task(settings: ColdSettings, items: Sequence[ColdItem]) -> list[ColdWritten]:
    """Write partitions. An error in one of them is returned, and the others continue."""
    storage = open_storage(settings.archive_url, settings.storage)
    with ThreadPoolExecutor(1) as ahead:
        return [_write(storage, item, ahead) for item in items]


def _write(storage: Storage, item: ColdItem, ahead: Executor) -> ColdWritten:
    folders: list[Path] = []
    try:
        with naming(str(item.where)):
            folders.extend(stage(Path(directory), item.where) for directory in item.directories)
            log, lowered = _write_log(storage, item, folders, ahead)
    except OSError as error:
        failure: MaxbrodError = translate_os(error, "write a log", str(item.where))
    except MaxbrodError as error:
        failure = error
    else:
        names = {str(each.parent): each.name for each in folders}
        return ColdWritten(where=item.where, folders=names, log=log, batches_lowered=lowered)
    for folder in folders:
        with suppress(OSError):
            shutil.rmtree(folder)
    return ColdWritten(where=item.where, folders={}, log=None, failure=failure)


def _write_log(storage: Storage, item: ColdItem, folders: Sequence[Path], ahead: Executor) -> tuple[WrittenLog, int]:
    writer = LogWriter(folders, start=item.start, segment_bytes=item.segment_bytes)
    lowered = 0
    try:
        for data, headers in _batches(storage, item, ahead):
            rows = _too_high(headers, item.epoch_max)
            if rows.size:
                writer.append(*_lowered(data, headers, rows, item.epoch_max or 0))
                lowered += len(rows)
            else:
                writer.append(data, headers)
        return writer.finish(item.end, _open_ended(item)), lowered
    finally:
        writer.discard()


def _batches(storage: Storage, item: ColdItem, ahead: Executor) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    """The batches of the item. Every slice is read to its end, because only then is its digest checked."""
    for stored in item.slices:
        for data, headers in read_logs(storage, stored, ahead=ahead):
            kept = int(np.count_nonzero(headers.last_offset < item.end))
            if kept:
                yield data, headers if kept == len(headers) else headers.take(slice(kept))


def _open_ended(item: ColdItem) -> list[AbortedTransaction]:
    """Aborted transactions that continue beyond what the archive holds of them."""
    return [each for stored in item.slices for each in stored.aborted if each.last_offset >= stored.end_offset - 1]


def _too_high(headers: BatchHeaders, epoch_max: int | None) -> NDArray[np.intp]:
    if epoch_max is None:
        return np.empty(0, np.intp)
    return np.flatnonzero((headers["leader_epoch"] > epoch_max) & (headers["magic"] == NEWEST_MAGIC))


def _lowered(
    data: NDArray[np.uint8], headers: BatchHeaders, rows: NDArray[np.intp], epoch: int
) -> tuple[NDArray[np.uint8], BatchHeaders]:
    changed = data.copy()
    places = headers.position[rows, None] + np.arange(_EPOCH.start, _EPOCH.stop)
    changed[places] = np.frombuffer(epoch.to_bytes(4, "big"), np.uint8)
    epochs = headers["leader_epoch"].copy()
    epochs[rows] = epoch
    return changed, replace(headers, fields={**headers.fields, "leader_epoch": epochs})

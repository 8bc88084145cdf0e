"""What one task does that writes partitions into log directories: slices read, checked, and written one after another.

Every attempt writes into folders of its own, which nobody looks at before the driver puts them in place.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.headers import NEWEST_MAGIC
from maxbrod.errors import MaxbrodError, naming
from maxbrod.layouts.kafka.slices import Slice  # noqa: TC001 - pydantic reads the types of fields
from maxbrod.layouts.logdir.installing import stage
from maxbrod.layouts.logdir.log_writing import LogWriter, WrittenLog
from maxbrod.layouts.reading import read_logs
from maxbrod.model import TopicPartition  # noqa: TC001 - pydantic reads the types of fields
from maxbrod.storage.failures import translate_os
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.config import StorageConfig
    from maxbrod.model import AbortedTransaction
    from maxbrod.storage.interface import Storage

_EPOCH: Final = slice(12, 16)
"""Where a batch of magic 2 has its leader epoch. Its checksum begins behind that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdSettings:
    """What every task needs to know besides its items. Holds secrets."""

    restore_id: str
    archive_url: str
    storage: StorageConfig = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdItem:
    """One partition of the target, and the directories that get it."""

    where: TopicPartition
    directories: tuple[str, ...]
    start: int
    """Where its log begins."""
    end: int
    """Where it ends: no batch reaches beyond."""
    epoch_max: int | None
    """Higher leader epochs become this one; None: none does."""
    segment_bytes: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdWritten:
    """What became of an item: by directory the folder that holds it, or why there is none."""

    where: TopicPartition
    folders: dict[str, str]
    log: WrittenLog | None
    batches_lowered: int = 0
    failure: dict[str, Any] | None = None


def run_cold_task(settings: ColdSettings, items: Sequence[ColdItem]) -> list[ColdWritten]:
    """What goes wrong with one partition is told, and the others go on."""
    storage = open_storage(settings.archive_url, settings.storage)
    with ThreadPoolExecutor(1) as ahead:
        return [_write(storage, item, ahead) for item in items]


def _write(storage: Storage, item: ColdItem, ahead: Executor) -> ColdWritten:
    folders: list[Path] = []
    try:
        with naming(str(item.where)):
            folders.extend(stage(Path(each), item.where) for each in item.directories)
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
    return ColdWritten(where=item.where, folders={}, log=None, failure=failure.as_dict())


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
    """Those of the item, all of every slice read, so that its digest is checked whatever is taken of it."""
    for stored in item.slices:
        for data, headers in read_logs(storage, stored, ahead=ahead):
            taken = int(np.count_nonzero(headers.last_offset < item.end))
            if taken:
                yield data, headers if taken == len(headers) else headers.take(slice(taken))


def _open_ended(item: ColdItem) -> list[AbortedTransaction]:
    """Aborted transactions that go on behind what the archive has of them."""
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

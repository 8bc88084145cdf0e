"""Finds what cannot be read of slices, where a restore has met damage: a job of its own, which writes nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from maxbrod.engine.jobs import run_tasks
from maxbrod.engine.windows import spread
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.reading import read_logs
from maxbrod.layouts.travelling import decode_slice
from maxbrod.model import PartitionId
from maxbrod.restore.plan.sources import UnreadableRange
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from maxbrod.config import StorageConfig
    from maxbrod.engine.session import Session
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.storage.interface import Storage


def find_loss(storage: Storage, stored: Slice) -> UnreadableRange | None:
    """The offsets of a slice that cannot be read; None if all can. The sound batches before the damage are not lost."""
    reached = stored.base_offset
    try:
        for _, headers in read_logs(storage, stored):
            reached = max(reached, int(headers.last_offset[-1]) + 1)
    except CorruptDataError as error:
        first = min(reached, stored.end_offset)
        name = error.object_name or storage.name_of(stored.path)
        why = error.message.partition(" cannot be read: ")[2] or error.message
        return UnreadableRange(first=first, end=stored.end_offset, object_name=name, why=why)
    return None


def run_loss_job(
    session: Session,
    archive_url: str,
    storage: StorageConfig,
    slices: Mapping[PartitionId, Sequence[Slice]],
    *,
    name: str,
    parallelism: int,
    stop: threading.Event | None = None,
) -> dict[PartitionId, list[UnreadableRange]]:
    """What is lost of each partition, in the order of offsets. UnavailableError where `stop` was set meanwhile."""
    sized = [(each.bytes, (partition, each)) for partition, found in slices.items() for each in found]
    payloads = [
        json.dumps([(asdict(partition), asdict(each)) for partition, each in task])
        for task in spread(sized, parallelism)
    ]
    answers = run_tasks(session, partial(work, archive_url, storage), payloads, name=name, stop=stop)
    return gather(answers)


def work(archive_url: str, options: StorageConfig, payload: str) -> str:
    """What a task does: text in, text out."""
    storage = open_storage(archive_url, options)
    found = ((partition, find_loss(storage, decode_slice(values))) for partition, values in json.loads(payload))
    return json.dumps([(partition, asdict(lost)) for partition, lost in found if lost is not None])


def gather(answers: Sequence[str]) -> dict[PartitionId, list[UnreadableRange]]:
    found: dict[PartitionId, list[UnreadableRange]] = {}
    for partition, lost in (each for answer in answers for each in json.loads(answer)):
        found.setdefault(PartitionId(**partition), []).append(UnreadableRange(**lost))
    return {partition: sorted(lost, key=lambda each: each.end) for partition, lost in found.items()}

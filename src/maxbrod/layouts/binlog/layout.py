"""itadventurer's kafka-backup: plain binary records and their indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.layouts.binlog import pruning, publishing, survey
from maxbrod.layouts.foreign import Fault, Layout, Loss, RecordAccess

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage


def _records() -> RecordAccess:
    from maxbrod.layouts.binlog import checking, reading, writing  # noqa: PLC0415 - loads numba, which takes a second

    return RecordAccess(read=reading.read, write=writing.write, check=checking.check)


def _repair(storage: Storage) -> list[Fault]:
    from maxbrod.layouts.binlog.repairing import repair  # noqa: PLC0415 - loads numba, too

    return repair(storage)


LAYOUT: Final = Layout(
    name="binlog",
    detect=survey.detect,
    look=survey.survey,
    publish=publishing.publish,
    prune=pruning.prune,
    records=_records,
    repair=_repair,
    losses=(
        Loss(what="leader epochs, producer ids and epochs, sequence numbers", real=False),
        Loss(what="which records a transaction wrote, and its markers", real=False),
        Loss(what="the topics' configuration, their number of partitions and of replicas", real=False),
    ),
)

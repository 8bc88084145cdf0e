"""Trivadis' kafka-backup: Avro object container files."""

from __future__ import annotations

from typing import Final

from maxbrod.layouts.avro import pruning, publishing, survey
from maxbrod.layouts.avro.options import losses
from maxbrod.layouts.foreign import Layout, Loss, RecordAccess


def _records() -> RecordAccess:
    from maxbrod.layouts.avro import checking, reading, writing  # noqa: PLC0415 - loads numba, which takes a second

    return RecordAccess(read=reading.read, write=writing.write, check=checking.check)


LAYOUT: Final = Layout(
    name="avro",
    detect=survey.detect,
    look=survey.survey,
    publish=publishing.publish,
    prune=pruning.prune,
    records=_records,
    choices=("instance",),
    losses_by=losses,
    losses=(
        Loss(what="leader epochs, producer ids and epochs, sequence numbers", real=False),
        Loss(what="which records a transaction wrote, and its markers", real=False),
    ),
)

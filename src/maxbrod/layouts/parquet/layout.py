"""CrowdStrike kafka-replicator's archives."""

from __future__ import annotations

from typing import Final

from maxbrod.layouts.foreign import Layout, Loss, RecordAccess
from maxbrod.layouts.parquet import checking, pruning, publishing, reading, survey, writing


def _records() -> RecordAccess:
    return RecordAccess(read=reading.read, write=writing.write, check=checking.check)


LAYOUT: Final = Layout(
    name="parquet",
    detect=survey.detect,
    look=survey.survey,
    publish=publishing.publish,
    prune=pruning.prune,
    records=_records,
    choices=("region",),
    remembers=True,
    losses=(
        Loss(what="producer ids, sequences, leader epochs and which records were written in transactions", real=False),
        Loss(what="transaction markers, which no consumer sees", real=False),
    ),
)

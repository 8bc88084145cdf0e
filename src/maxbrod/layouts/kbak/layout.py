"""osodevops kafka-backup, 0.17 to 0.25."""

from __future__ import annotations

from typing import Final

from maxbrod.layouts.foreign import Layout, Loss, RecordAccess
from maxbrod.layouts.kbak import pruning, publishing, survey


def _records() -> RecordAccess:
    from maxbrod.layouts.kbak import checking, reading, writing  # noqa: PLC0415 - loads numba, which takes a second

    return RecordAccess(read=reading.read, write=writing.write, check=checking.check)


LAYOUT: Final = Layout(
    name="kbak",
    detect=survey.detect,
    look=survey.survey,
    publish=publishing.publish,
    prune=pruning.prune,
    records=_records,
    choices=("backup_id",),
    losses=(
        Loss(what="producer ids, producer epochs, sequence numbers and leader epochs", real=False),
        Loss(what="transaction markers, and which records were written in a transaction", real=False),
        Loss(what="the timestamp type: all times come back as create times", real=False, field="timestamp_type"),
        Loss(what="header keys that are not UTF-8, when the tool itself reads them", real=False),
    ),
)

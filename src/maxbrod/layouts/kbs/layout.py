"""The format in the documentation of osodevops kafka-backup."""

from __future__ import annotations

from typing import Final

from maxbrod.layouts.foreign import Loss
from maxbrod.layouts.modular import ModularLayout

LAYOUT: Final = ModularLayout(
    name="kbs",
    choices=("backup_id",),
    losses=(
        Loss(what="producer ids, producer epochs, sequence numbers and leader epochs", real=False),
        Loss(what="transaction markers, and which records were written in a transaction", real=False),
        Loss(what="the timestamp type: all times come back as create times", real=False, field="timestamp_type"),
    ),
)

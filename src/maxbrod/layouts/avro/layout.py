"""Trivadis' kafka-backup: Avro object container files."""

from __future__ import annotations

from typing import Final

from maxbrod.layouts.foreign import Loss
from maxbrod.layouts.modular import ModularLayout

LAYOUT: Final = ModularLayout(
    name="avro",
    choices=("instance",),
    has_lossy_options=True,
    losses=(
        Loss(what="leader epochs, producer ids and epochs, sequence numbers", real=False),
        Loss(what="which records a transaction wrote, and its markers", real=False),
    ),
)

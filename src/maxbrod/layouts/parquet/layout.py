"""CrowdStrike kafka-replicator's archives."""

from __future__ import annotations

from typing import Final

from maxbrod.layouts.foreign import Loss
from maxbrod.layouts.modular import ModularLayout

LAYOUT: Final = ModularLayout(
    name="parquet",
    choices=("region",),
    remembers=True,
    losses=(
        Loss(what="producer ids, sequences, leader epochs and which records were written in transactions", real=False),
        Loss(what="transaction markers, which no consumer sees", real=False),
    ),
)

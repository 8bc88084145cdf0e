"""itadventurer's kafka-backup: plain binary records and their indexes."""

from __future__ import annotations

from typing import Final

from maxbrod.layouts.foreign import Loss
from maxbrod.layouts.modular import ModularLayout

LAYOUT: Final = ModularLayout(
    name="binlog",
    losses=(
        Loss(what="leader epochs, producer ids and epochs, sequence numbers", real=False),
        Loss(what="which records a transaction wrote, and its markers", real=False),
        Loss(what="the topics' configuration, their number of partitions and of replicas", real=False),
    ),
)

"""The items and results of a transfer as JSON, to travel to the workers and back."""

from __future__ import annotations

from typing import Final

from pydantic import TypeAdapter

from maxbrod.transfer.task import TransferItem, Transferred

ITEMS: Final = TypeAdapter(tuple[TransferItem, ...])
RESULTS: Final = TypeAdapter(tuple[Transferred, ...])

"""The items and results of a transfer as JSON, to travel to the workers and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from maxbrod.transfer.task import TransferItem, Transferred

if TYPE_CHECKING:
    from collections.abc import Mapping

ITEMS: Final = TypeAdapter(tuple[TransferItem, ...])
RESULTS: Final = TypeAdapter(tuple[Transferred, ...])
_ITEM: Final = TypeAdapter(TransferItem)


def decode_item(values: Mapping[str, Any]) -> TransferItem:
    """An item from the values that JSON has."""
    return _ITEM.validate_python(values)

"""The items of a transfer as JSON has made values of them. Loads nothing that reads or writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.layouts.travelling import decode_slice
from maxbrod.model import TopicPartition
from maxbrod.transfer.task import TransferItem

if TYPE_CHECKING:
    from collections.abc import Mapping


def decode_item(values: Mapping[str, Any]) -> TransferItem:
    slices = tuple(decode_slice(each) for each in values["slices"])
    return TransferItem(**{**values, "where": TopicPartition(**values["where"]), "slices": slices})

"""The items of a transfer as JSON has made values of them. Loads nothing that reads or writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.backup.job import decode_slice
from maxbrod.convert.task import TransferItem
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping


def decode_item(values: Mapping[str, Any]) -> TransferItem:
    slices = tuple(decode_slice(each) for each in values["slices"])
    return TransferItem(**{**values, "where": TopicPartition(**values["where"]), "slices": slices})

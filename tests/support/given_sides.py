"""A reader that hands out the records which a test gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from maxbrod.batch.columns import RECORD_SCHEMA
from maxbrod.batch.hashes import COLUMNS
from maxbrod.compare.items import CompareItem, CompareSettings
from maxbrod.compare.plan import Side
from maxbrod.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = pa.schema([RECORD_SCHEMA.field(name) for name in COLUMNS])


class FakeReader:
    """Hands out what a test gives it, in chunks."""

    chunks: dict[Side, list[tuple[pa.RecordBatch, Any]]]
    fails = False

    def __init__(self, _: CompareSettings) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, item: CompareItem) -> Iterator[tuple[pa.RecordBatch, Any]]:
        yield from type(self).chunks[item.side]
        if type(self).fails and item.side is Side.TARGET:
            raise UnavailableError("the broker is gone")

"""Nothing: this layout has no metadata besides its names and footers, so that a written segment counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.parquet.writing import check_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Survey, WriteOptions
    from maxbrod.storage.interface import Storage


def publish(
    _storage: Storage, _survey: Survey, _written: Sequence[ForeignSegment], options: WriteOptions, _facts: ClusterFacts
) -> None:
    check_options(options)

"""Publishes what is known besides the records, and which offsets segments hold: only this shows that one is lost.

The tool has no metadata but names and footers: a segment counts as soon as it exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.coverage import extended_by
from maxbrod.layouts.facts import read_facts, write_facts
from maxbrod.layouts.parquet.writing import check_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Survey, WriteOptions
    from maxbrod.storage.interface import Storage


def publish(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    check_options(options)
    coverage = extended_by(read_facts(storage).coverage, survey, written, facts.gaps, _folder)
    write_facts(storage, survey, facts, coverage)


def _folder(segment: ForeignSegment) -> str:
    """The folder of the partition; its levels are subfolders."""
    return segment.path.rsplit("/", 2)[0]

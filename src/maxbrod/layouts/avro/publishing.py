"""Publishes what is known besides the records, and which offsets the files hold: only this shows that a file is lost.

The files themselves count as soon as they exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.avro.options import check_options
from maxbrod.layouts.coverage import extended_by
from maxbrod.layouts.facts import read_facts, write_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Survey, WriteOptions
    from maxbrod.storage.interface import Storage


def publish(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    check_options(options)
    coverage = extended_by(read_facts(storage).coverage, survey, written, facts.gaps, folder_of)
    write_facts(storage, survey, facts, coverage)


def folder_of(segment: ForeignSegment) -> str:
    return segment.path.rpartition("/")[0]

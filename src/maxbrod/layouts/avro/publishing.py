"""What is known besides the records. The files themselves count as soon as they are there, and nothing lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.avro.facts import write_facts
from maxbrod.layouts.avro.options import check_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Survey, WriteOptions
    from maxbrod.storage.interface import Storage


def publish(
    storage: Storage, survey: Survey, _written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    check_options(options)
    write_facts(storage, survey, facts)

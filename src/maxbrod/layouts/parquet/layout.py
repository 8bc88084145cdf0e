"""CrowdStrike kafka-replicator's archives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.layouts.foreign import Layout, Loss, RecordAccess
from maxbrod.layouts.parquet import reader, survey, writer
from maxbrod.layouts.tree import prune_tree, publish_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Survey, WriteOptions
    from maxbrod.storage.interface import Storage


def _publish(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    writer.check_options(options)
    publish_tree(storage, survey, written, facts, levels=1)


def _records() -> RecordAccess:
    return RecordAccess(read=reader.read, write=writer.write, check=survey.check)


LAYOUT: Final = Layout(
    name="parquet",
    detect=survey.detect,
    look=survey.survey,
    publish=_publish,
    prune=prune_tree,
    records=_records,
    choices=("region",),
    remembers=True,
    losses=(
        Loss(what="producer ids, sequences, leader epochs and which records were written in transactions", real=False),
        Loss(what="transaction markers, which no consumer sees", real=False),
    ),
)

"""Trivadis' kafka-backup: Avro object container files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.layouts.avro import survey
from maxbrod.layouts.avro.format import check_options, losses
from maxbrod.layouts.foreign import Layout, Loss, RecordAccess
from maxbrod.layouts.tree import prune_tree, publish_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Survey, WriteOptions
    from maxbrod.storage.interface import Storage


def _publish(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    check_options(options)
    publish_tree(storage, survey, written, facts)


def _records() -> RecordAccess:
    from maxbrod.layouts.avro import reader, writer  # noqa: PLC0415 - loads numba, which takes a second

    return RecordAccess(read=reader.read, write=writer.write, check=reader.check)


LAYOUT: Final = Layout(
    name="avro",
    detect=survey.detect,
    look=survey.survey,
    publish=_publish,
    prune=prune_tree,
    records=_records,
    choices=("instance",),
    losses_by=losses,
    losses=(
        Loss(what="leader epochs, producer ids and epochs, sequence numbers", real=False),
        Loss(what="which records a transaction wrote, and its markers", real=False),
    ),
)

"""Follows one archive: looks it up when it has changed, and turns checkpoints into plans and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from maxbrod.archive.incarnations import Incarnation, newest_ids, select_names
from maxbrod.catalog.catalog import Catalog
from maxbrod.model import PartitionId
from maxbrod.table.read.archive import look_up, topic_ranks
from maxbrod.table.stream.batches import group_portions, plan_batch
from maxbrod.table.stream.options import EARLIEST, LATEST
from maxbrod.table.stream.plan import Limits, advance, mark_at
from maxbrod.table.stream.positions import StreamPosition, decode_position, encode_position, is_start
from maxbrod.table.stream.resuming import check_known
from maxbrod.table.stream.view import view_of

if TYPE_CHECKING:
    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.table.read.archive import LookedUp
    from maxbrod.table.stream.batches import StreamPortion
    from maxbrod.table.stream.options import StreamOptions
    from maxbrod.table.stream.positions import Mark
    from maxbrod.table.stream.view import View


class Follower:
    """Holds nothing that a checkpoint does not hold, but for what spares a second look at an unchanged archive."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._archive: LookedUp | None = None
        self._view: View | None = None
        self._stands_still = False

    def stand_still(self) -> None:
        """From now on the archive has no news: what it holds now is what the stream ends with."""
        self._look()
        self._stands_still = True

    def latest(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        """Where the batch ends that begins at `start`; `start` itself if there is nothing to read."""
        archive, view = self._look()
        begun = None if is_start(start) else decode_position(start)
        before = StreamPosition(marks=self._beginning(archive, view)) if begun is None else begun
        if self._options.fail_on_data_loss:
            check_known(view, before)
        limits = Limits(offsets=self._options.offsets_max, bytes=self._options.bytes_max) if limited else Limits()
        lossy = not self._options.fail_on_data_loss
        end = advance(view, before, limits, self._options.table.scope, lossy=lossy)
        if begun is None:
            # The stream's beginning is not remembered by Spark, so that its first batch says where it began.
            begins = {each: mark.end for each, mark in before.marks.items()}
            return encode_position(StreamPosition(marks=end.marks, begins={**begins, **end.begins}))
        return start if end is begun else encode_position(end)

    def plan(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[StreamPortion, ...]]:
        """What each task of a batch reads."""
        archive, _ = self._look(to_plan=True)
        table = self._options.table
        begun = None if is_start(start) else decode_position(start)
        lossy = not self._options.fail_on_data_loss
        portions = plan_batch(archive.catalog, begun, decode_position(end), table.scope, lossy=lossy)
        return group_portions(portions, table.split_bytes)

    def _look(self, *, to_plan: bool = False) -> tuple[LookedUp, View]:
        """Rows of a plan are those of today, even if the stream is to end with what there was."""
        wanted = to_plan or not self._stands_still
        if self._archive is None or self._view is None or (wanted and _is_outdated(self._archive, to_plan=to_plan)):
            table = self._options.table
            self._archive = look_up(table.url, table.storage, table.layout)
            if self._view is None or not self._stands_still:
                self._view = view_of(self._archive, table)
        return self._archive, self._view

    def _beginning(self, archive: LookedUp, view: View) -> dict[PartitionId, Mark]:
        """What a new stream counts as read. UsageError: a topic or a run is not there."""
        starting, snapshot = self._options.starting, archive.last_snapshot()
        # A topic without a record has no row, and is no mistake.
        empty = () if snapshot is None else snapshot.topics.values()
        select_names({*view.topics.values(), *empty}, self._options.table.topics, may_come=True)
        if starting == LATEST:
            return _ends(view)
        marks: dict[PartitionId, Mark] = {}
        then = None if starting == EARLIEST else archive.snapshot_of(starting)
        ends = {} if then is None else then.ends
        cut = {} if then is None else _epochs_before(archive, then)
        older = set() if self._options.table.every_incarnation else _older_ids(archive, view, snapshot)
        for number, each in enumerate(view.partitions):
            first, last = int(view.base[view.starts[number]]), int(view.end[view.starts[number + 1] - 1])
            if each.topic_id in older:
                marks[each] = mark_at(view, number, last)
            elif each in cut:
                # Its epoch is that of the history that the run saw: by it the stream finds where that was cut.
                marks[each] = replace(mark_at(view, number, ends[each]), epoch=cut[each])
            elif each in ends:
                marks[each] = mark_at(view, number, min(max(ends[each], first), last))
        return marks


def _is_outdated(archive: LookedUp, *, to_plan: bool) -> bool:
    if isinstance(archive.catalog, Catalog):
        return not archive.catalog.is_newest()
    # Only another survey tells what other tools have done meanwhile; the one that a batch was found by is new enough.
    return not to_plan


def _ends(view: View) -> dict[PartitionId, Mark]:
    last = view.end[view.starts[1:] - 1].tolist()
    return {each: mark_at(view, number, last[number]) for number, each in enumerate(view.partitions)}


def _epochs_before(archive: LookedUp, then: Snapshot) -> dict[PartitionId, int]:
    """Of partitions whose rows were replaced since a run: the highest leader epoch of what the run left."""
    replaced = {
        each for each, count in archive.catalog.revisions().items() if count > then.revisions.get(each, 0)
    } & then.ends.keys()
    if not replaced:
        return {}
    columns = ("topic_id", "partition", "last_leader_epoch")
    rows = archive.catalog.rows(
        columns=columns, as_of={each: then.ends[each] for each in replaced}, revisions=then.revisions
    )
    highest = rows.group_by(["topic_id", "partition"]).aggregate([("last_leader_epoch", "max")]).to_pylist()
    found = {
        PartitionId(topic_id=each["topic_id"], partition=each["partition"]): each["last_leader_epoch_max"]
        for each in highest
    }
    return {each: -1 if found.get(each) is None else found[each] for each in replaced}


def _older_ids(archive: LookedUp, view: View, snapshot: Snapshot | None) -> set[str]:
    """Of topics that were created again, those that were before."""
    rows = archive.catalog.rows(columns=("topic", "topic_id", "written_at"))
    found = rows.filter(pc.field("topic_id").isin(sorted(view.topics))).group_by("topic_id")
    incarnations = [
        Incarnation(topic=each["topic_max"], topic_id=each["topic_id"], first_written_at=each["written_at_min"])
        for each in found.aggregate([("topic", "max"), ("written_at", "min")]).to_pylist()
    ]
    return view.topics.keys() - newest_ids(incarnations, topic_ranks(snapshot))

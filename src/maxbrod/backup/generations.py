"""Reads compacted topics afresh, generation by generation, beside the backup that goes on.

A run begins generations that are due, reads a part of those under construction, and makes the complete ones active:

    begin     a generation with targets, where the archive ends now                       committed with the run
    read      a part of what lies below the targets, into rows of kind `building`         committed wave by wave
    switch    its rows become the archive's, the rows that they replace are retired       one commit, the run's own
    drop      its rows go, and the catalog says why

The active generation is complete and readable until the commit of the switch, and the new one from then on. A run that
is killed leaves what it has committed, and the next one reads on. Decisions are in `plan/generations.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.backup.plan.generations import (
    TOMBSTONES_MS,
    GenerationPolicy,
    GenerationShare,
    PartitionView,
    TopicView,
    begin,
    bytes_left,
    first_generation,
    is_due,
    log_ends,
    parse_length,
    plan_shares,
    raise_targets,
    why_drop,
    why_late,
)
from maxbrod.backup.plan.generations import budget as budget_of
from maxbrod.backup.plan.ranges import PartitionBackup
from maxbrod.backup.report import STORAGE
from maxbrod.catalog.generations import GenerationChanges, TopicGenerations, as_active, as_building, encode_generations
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.catalog.rows import Gap, Row, Segment, decode_rows
from maxbrod.catalog.schema import Kind
from maxbrod.catalog.tiling import Overlap, UncoveredRange, find_tiling_faults
from maxbrod.errors import EXIT_DONE, ObjectNotFoundError
from maxbrod.kafka.state.cluster_state import ClusterState
from maxbrod.model import MENDABLE, GapReason, PartitionId, now_ms
from maxbrod.notices import Notice

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.backup.options import BackupOptions
    from maxbrod.backup.proof import Proved

NOTICE = "generation"
_UNUSABLE = frozenset({*MENDABLE, GapReason.DELETED})
"""A generation with such offsets might replace records by nothing: it is read up to them, and no further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGenerations:
    """Generations as the catalog has them, and changes that are not committed yet."""

    topics: Mapping[str, TopicGenerations] = field(default_factory=dict)
    """By topic id."""
    read: Mapping[PartitionId, ArchivedRange] = field(default_factory=dict)
    """The ranges that generations under construction have read."""
    changed: frozenset[str] = frozenset()
    """Topics whose generations are not committed as they are in `topics`."""
    rows: tuple[tuple[int, Segment | Gap], ...] = ()
    """Rows under construction that are not committed, with the number of their generation."""
    dropped: frozenset[str] = frozenset()
    """Topics whose committed rows under construction go with the next commit."""
    switch: Switch | None = None

    @property
    def pending(self) -> bool:
        return bool(self.changed or self.rows or self.dropped or self.switch)

    def with_topic(self, topic: TopicGenerations) -> KnownGenerations:
        return replace(self, topics={**self.topics, topic.topic_id: topic}, changed=self.changed | {topic.topic_id})

    def without_building(self, topic: TopicGenerations, why: str) -> KnownGenerations:
        known = self.with_topic(topic.without_building(now_ms(), why))
        return replace(
            known,
            read={partition: held for partition, held in self.read.items() if partition.topic_id != topic.topic_id},
            rows=tuple(row for row in self.rows if row[1].topic_id != topic.topic_id),
            dropped=self.dropped | {topic.topic_id},
        )

    def caught_up(self) -> frozenset[str]:
        """Topics with a generation that only waits for the archive to reach the end of the log."""
        found = ((topic_id, topic.building) for topic_id, topic in self.topics.items())
        return frozenset(
            topic_id for topic_id, building in found if building is not None and building.caught_up_at is not None
        )

    def changes(self, archive: Archive, *, run_id: str, everything: bool) -> GenerationChanges:
        """Return the changes of the next commit; a switch only with the commit of the run's own row."""
        if not self.pending:
            return GenerationChanges()
        by_number: dict[int, list[Segment | Gap]] = {}
        for number, row in self.rows:
            by_number.setdefault(number, []).append(row)
        catalog = archive.catalog
        changes = GenerationChanges().plus(
            added=[
                *(as_building(rows, number) for number, rows in by_number.items()),
                encode_generations(
                    [self.topics[topic_id] for topic_id in sorted(self.changed)], run_id=run_id, written_at=now_ms()
                ),
            ],
            removed=[
                catalog.generation_rows(self.changed, kind=Kind.GENERATIONS),
                catalog.generation_rows(self.dropped),
            ],
        )
        if self.switch is not None and everything:
            changes = changes.plus(added=[self.switch.added], removed=[self.switch.removed])
        return changes

    def after_commit(self) -> KnownGenerations:
        return replace(self, changed=frozenset(), rows=(), dropped=frozenset(), switch=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Generations that become active: their rows as the archive's, in place of rows under construction."""

    added: pa.Table
    removed: pa.Table
    retired: tuple[Row, ...]
    """The rows of the generations before, as far as the new ones do not share them."""


def policy_of(request: BackupOptions) -> GenerationPolicy | None:
    """None: topics are not read in generations."""
    every_s = parse_length(request.generation_every, request.layout_options)
    if every_s is None:
        return None
    interval_ms = round(request.every * 1000) if request.follow else None
    return GenerationPolicy(every_ms=round(every_s * 1000), interval_ms=interval_ms, bytes_max=request.generation_bytes)


def read_generations(archive: Archive) -> KnownGenerations:
    topics = archive.catalog.generations()
    under_construction = any(topic.building is not None for topic in topics.values())
    return KnownGenerations(topics=topics, read=archive.catalog.building_positions() if under_construction else {})


def view_topics(
    plans: Mapping[PartitionId, PartitionBackup],
    held: Mapping[PartitionId, ArchivedRange],
    known: KnownGenerations,
    cluster: ClusterState,
    complete: Mapping[PartitionId, bool],
) -> dict[str, TopicView]:
    """The chosen topics, by id. `complete` has every chosen partition, also those that did not answer."""
    found: dict[str, list[PartitionView]] = {}
    for partition, plan in sorted(plans.items()):
        read = known.read.get(partition)
        first = held[partition].first_offset
        view = PartitionView(state=plan.state, held=held[partition], read_to=first if read is None else read.end_offset)
        found.setdefault(partition.topic_id, []).append(view)
    topics = {topic.topic_id: topic for topic in cluster.topics}
    return {
        topic_id: TopicView(
            topic=views[0].state.topic,
            topic_id=topic_id,
            compacted=None if topic_id not in topics else topics[topic_id].compacted,
            tombstones_ms=tombstones_ms(topics[topic_id].effective if topic_id in topics else None),
            partitions=tuple(views),
            complete=all(done for place, done in complete.items() if place.topic_id == topic_id),
        )
        for topic_id, views in found.items()
    }


def drop_and_begin(
    known: KnownGenerations,
    views: Mapping[str, TopicView],
    archive: Archive,
    policy: GenerationPolicy,
    *,
    present: frozenset[str],
    now: int,
) -> tuple[KnownGenerations, list[Notice]]:
    """Generations that cannot be completed are dropped, topics get their first generation, and due ones begin.

    `present` are the ids of all topics that the cluster has. A generation begins only if the run may read of it.
    """
    notices: list[Notice] = []
    for topic_id, topic in known.topics.items():
        why = why_drop(views.get(topic_id), topic, present=topic_id in present, now_ms=now)
        if why is not None:
            notices.append(_dropped(topic, why))
            known = known.without_building(topic, why)
    for view in views.values():
        if view.topic_id not in known.topics and view.compacted:
            # When the first of the archive's rows was written. A run of them may not be committed yet.
            written = archive.catalog.rows(topic_id=view.topic_id, columns=["written_at"])["written_at"]
            began_at = min(pc.min(written).as_py() or now, now)
            first = first_generation(view, began_at=began_at, now_ms=now)
            known = known if first is None else known.with_topic(first)
    room = policy.bytes_max - sum(
        bytes_left(views[key], topic.building)
        for key, topic in known.topics.items()
        if topic.building is not None and key in views
    )
    due = [views[key] for key, topic in known.topics.items() if key in views and is_due(topic, policy, now_ms=now)]
    for view in due:
        if policy.interval_ms is not None and room <= 0:
            # Many topics become due at the same time: they take turns.
            break
        begun = begin(known.topics[view.topic_id], view, now_ms=now) if view.compacted else None
        if begun is not None and begun.building is not None:
            known = known.with_topic(begun)
            room -= bytes_left(view, begun.building)
            message = f"generation {begun.building.number} begins: the log is read again from its start"
            notices.append(Notice(kind=NOTICE, message=message, topic=view.topic))
    return known, notices


def choose_shares(
    known: KnownGenerations, views: Mapping[str, TopicView], policy: GenerationPolicy, *, now: int
) -> list[GenerationShare]:
    """Return the shares that this run reads, the oldest generations first."""
    building = [
        (topic.building, views[key])
        for key, topic in known.topics.items()
        if topic.building is not None and key in views
    ]
    shares: list[GenerationShare] = []
    room = policy.bytes_max
    for generation, view in sorted(building, key=lambda pair: (pair[0].began_at, pair[1].topic_id)):
        if not view.left(generation):
            continue
        allowed = budget_of(view, generation, policy, room=max(room, 0), now_ms=now)
        if allowed > 0 or room > 0:
            shares += plan_shares(view, generation, allowed)
            room -= allowed
    return shares


def held_by(shares: Iterable[GenerationShare], known: KnownGenerations) -> dict[PartitionId, ArchivedRange]:
    """Return what generations hold of the partitions that are read on."""
    found: dict[PartitionId, ArchivedRange] = {}
    for share in shares:
        plan = share.plan
        found[plan.state.id] = known.read.get(plan.state.id) or ArchivedRange(
            topic=plan.state.topic, first_offset=plan.first, end_offset=plan.first, last_leader_epoch=None
        )
    return found


def accept(
    known: KnownGenerations, proved: Proved, generations: Mapping[PartitionId, int]
) -> tuple[KnownGenerations, list[Notice], frozenset[PartitionId]]:
    """The rows that were read, up to the first offset that could not be; and the partitions that stop there."""
    rows: dict[PartitionId, list[Segment | Gap]] = {}
    blocked: set[PartitionId] = set()
    for row in sorted(proved.rows, key=lambda row: (row.topic_id, row.partition, row.base_offset)):
        if row.reason in _UNUSABLE:
            blocked.add(row.id)
        if row.id not in blocked:
            rows.setdefault(row.id, []).append(row)
    read = dict(known.read)
    for partition, mine in rows.items():
        before = read.get(partition)
        epochs = [segment.last_leader_epoch for segment in mine if isinstance(segment, Segment)]
        if before is not None and before.last_leader_epoch is not None:
            epochs.append(before.last_leader_epoch)
        read[partition] = ArchivedRange(
            topic=mine[0].topic,
            first_offset=mine[0].base_offset if before is None else before.first_offset,
            end_offset=mine[-1].end_offset,
            last_leader_epoch=max(epochs, default=None),
        )
    added = tuple((generations[partition], row) for partition, mine in rows.items() for row in mine)
    # Nothing of the backup itself is missing: the active generation has it. A store that fails concerns the backup too.
    notices = [
        notice
        if notice.kind == STORAGE
        else replace(
            notice, kind=NOTICE, exit_code=EXIT_DONE, message=f"the new generation ends here: {notice.message}"
        )
        for notice in proved.notices
        if notice.exit_code
    ]
    known = replace(known, read=read, rows=(*known.rows, *added))
    return known, notices, frozenset({*proved.stopped, *blocked})


def note_caught_up(
    known: KnownGenerations, views: Mapping[str, TopicView], archive: Archive
) -> tuple[KnownGenerations, list[Notice]]:
    """Generations that have read everything below their targets. The archive's rows must be committed."""
    notices: list[Notice] = []
    for topic_id, topic in known.topics.items():
        building = topic.building
        if building is None or topic_id not in views:
            continue
        view = _with_read(views[topic_id], known)
        wrong = [partition.partition for partition in view.partitions if _begins_early(partition, known)]
        if wrong:
            why = f"the log of partition {wrong[0]} begins within a batch that the archive does not begin with"
            notices.append(_dropped(topic, why))
            known = known.without_building(topic, why)
            continue
        if view.left(building):
            continue
        read_to = {partition.partition: partition.read_to for partition in view.partitions}
        columns = ["partition", "base_offset", "end_offset"]
        rows = archive.catalog.rows(topic_id=topic_id, columns=columns)
        raised = raise_targets(building, read_to, list(zip(*(rows[name].to_pylist() for name in columns), strict=True)))
        if view.left(raised):
            known = known.with_topic(topic.with_generation(replace(raised, caught_up_at=None)))
        elif building.caught_up_at is None:
            now = now_ms()
            why_not = why_late(building, view, now_ms=now)
            if why_not is not None:
                notices.append(_dropped(topic, why_not))
                known = known.without_building(topic, why_not)
            else:
                known = known.with_topic(topic.with_generation(replace(raised, caught_up_at=now)))
    return known, notices


def plan_switch(
    known: KnownGenerations, views: Mapping[str, TopicView], archive: Archive
) -> tuple[KnownGenerations, list[Notice]]:
    """Make generations active that have caught up, of topics whose archive reaches the end of the log.

    Everything must be committed: the rows are taken from the catalog.
    """
    added, removed, retired, notices = [], [], [], []
    for topic_id in sorted(known.caught_up()):
        view = views.get(topic_id)
        if view is None or not view.complete:
            continue
        topic = known.topics[topic_id]
        assert topic.building is not None  # noqa: S101 - it has caught up
        building, live = archive.catalog.generation_rows([topic_id]), archive.catalog.rows(topic_id=topic_id)
        # The new generation replaces rows up to its targets.
        limits = [topic.building.targets.get(partition, 0) for partition in live["partition"].to_pylist()]
        old = pa.array(live["end_offset"].to_numpy() <= np.array(limits, np.int64))
        active = as_active(building)
        fault = _fault(pa.concat_tables([active, live.filter(pc.invert(old))]), view) or _lost_object(archive, active)
        if fault is not None:
            # The active generation is still there, and complete.
            notices.append(_dropped(topic, fault))
            known = known.without_building(topic, fault)
            continue
        added.append(active)
        removed.append(building)
        retired += decode_rows(live.filter(old))
        before = "" if topic.active is None else f"; generation {topic.active.number} is retired"
        message = f"generation {topic.building.number} is complete and active{before}"
        notices.append(Notice(kind=NOTICE, message=message, topic=topic.topic))
        known = known.with_topic(topic.activated(now_ms(), log_ends(view)))
        known = replace(known, read={place: held for place, held in known.read.items() if place.topic_id != topic_id})
    if added:
        switch = Switch(added=pa.concat_tables(added), removed=pa.concat_tables(removed), retired=tuple(retired))
        known = replace(known, switch=switch)
    return known, notices


def _with_read(view: TopicView, known: KnownGenerations) -> TopicView:
    partitions = (
        replace(partition, read_to=known.read[partition.state.id].end_offset)
        if partition.state.id in known.read
        else partition
        for partition in view.partitions
    )
    return replace(view, partitions=tuple(partitions))


def _begins_early(view: PartitionView, known: KnownGenerations) -> bool:
    """Queries as of older runs would return such rows beside the retired ones."""
    read = known.read.get(view.state.id)
    return read is not None and read.first_offset < view.held.first_offset


def _fault(rows: pa.Table, view: TopicView) -> str | None:
    """The reason not to accept these rows; None if they cover exactly the same offsets as before, each once."""
    expected = {
        partition.state.id: (partition.held.first_offset, partition.held.end_offset) for partition in view.partitions
    }
    tiling = find_tiling_faults(rows, expected)
    faults: tuple[UncoveredRange | Overlap, ...] = (*tiling.holes, *tiling.overlaps)
    for fault in faults:
        where = f"offsets {fault.first_offset} to {fault.end_offset} of partition {fault.partition.partition}"
        return f"its rows do not cover {where} exactly once"
    return None


def _lost_object(archive: Archive, rows: pa.Table) -> str | None:
    """The reason why records of these rows cannot be read; None if every object exists and is long enough.

    It may have taken days to write them, and they are to replace rows whose objects are there.
    """
    ends = pc.add(rows["position"], rows["bytes"])
    slices = pa.table({"path": rows["path"], "end": ends}).drop_null().group_by("path").aggregate([("end", "max")])
    for path, end in zip(slices["path"].to_pylist(), slices["end_max"].to_pylist(), strict=True):
        try:
            size = archive.storage.head(path).size
        except ObjectNotFoundError:
            return f"its object {path} is lost"
        if size < end:
            return f"its object {path} was cut off: it has {size} bytes, and {end} are needed"
    return None


def tombstones_ms(effective: Mapping[str, str] | None) -> int:
    text = (effective or {}).get("delete.retention.ms", "")
    return int(text) if text.isdecimal() else TOMBSTONES_MS


def _dropped(topic: TopicGenerations, why: str) -> Notice:
    number = 0 if topic.building is None else topic.building.number
    message = f"generation {number} is dropped before it was complete: {why}"
    hint = "the generation before it stays active; the next one begins by itself"
    return Notice(kind=NOTICE, message=message, topic=topic.topic, hint=hint)

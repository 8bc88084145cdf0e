"""The plan of an interval of ingress, from the archive's rows and the ends of the destination's logs. Pure.

The destination's logs are the only record of progress: the log end of a partition is the next source offset, because
records keep their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.renames import Rename
from maxbrod.archive.selection import select_topics
from maxbrod.catalog.rows import Run, Segment, decode_rows, slice_of
from maxbrod.catalog.schema import SORT_ORDER, Kind
from maxbrod.catalog.tiling import Tiling, find_tiling_faults
from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import MENDABLE, GapReason, PartitionId
from maxbrod.restore.plan.sources import read_columns
from maxbrod.restore.plan.targets import CLEANUP_POLICY, MESSAGE_BYTES_DEFAULT, ConfigChange, plan_new_configs

if TYPE_CHECKING:
    from maxbrod.kafka.state.cluster_state import TopicState
    from maxbrod.replicate.link import LinkMark

_BATCH_BYTES: Final = 1 << 20
_MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_HEADERS_BYTES: Final = 64 << 10
"""By so much a topic that is appended to accepts larger batches than its source: records get headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """A source topic and the destination topic that mirrors it."""

    source: TopicState
    name: str
    """The name at the destination."""
    gone: bool = False
    """True if the source cluster has deleted the topic."""
    joined: bool = False
    """True if other source topics have the same destination."""

    @property
    def compacted(self) -> bool:
        return bool(self.source.compacted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Offsets [first, end) that the archive accounts for. A new mirror begins at `start`."""

    first: int
    end: int
    start: int
    """The log start of the source at the last run, if that is later than `first`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorConfigs:
    """The configuration of a mirror while it is linked, and the change that makes it an ordinary topic."""

    linked: Mapping[str, str]
    release: ConfigChange


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPortion:
    """The part of the archive to append to one partition: the offsets from its log end to `end`."""

    end: int
    slices: tuple[Slice, ...]
    bytes: int
    records: int
    lost: tuple[int, int, str] | None = None
    """The first range of offsets that the archive has lost, and why. Nothing behind it is appended."""
    pruned: tuple[tuple[int, int], ...] = ()
    """Ranges that were pruned from the archive. They become holes."""

    def bytes_between(self, position: int, end: int) -> int:
        """The archived bytes of slices that end behind `position` and not behind `end`."""
        return sum(each.bytes for each in self.slices if position < each.end_offset <= end)

    @property
    def why_lost(self) -> str | None:
        if self.lost is None:
            return None
        first, end, why = self.lost
        return f"the archive has lost the offsets {first} to {end} ({why}); --accept-gaps continues behind"


def choose_mirrors(
    topics: Iterable[TopicState],
    gone: Collection[str],
    archived: Collection[str],
    *,
    include: Sequence[str],
    exclude: Sequence[str],
    rename: Rename,
    join: bool = False,
) -> tuple[Mirror, ...]:
    """The topics to mirror, of those that the snapshot knows. `gone` and `archived` are topic ids.

    Topics that the source recreated occur twice: only the one that is not `gone` is mirrored, unless both are.
    UsageError: two topics would have one name at the destination, and may not `join`.
    """
    known = {each.name: each for each in sorted(topics, key=lambda each: each.topic_id not in gone)}
    chosen = select_topics({name: each.internal for name, each in known.items()}, include, exclude).chosen
    found: dict[str, list[Mirror]] = {}
    for name in chosen:
        topic = known[name]
        if topic.topic_id not in archived:
            continue
        mirror = Mirror(source=topic, name=rename.apply(name), gone=topic.topic_id in gone)
        if mirror.name in found and not join:
            raise UsageError(
                f"two topics would be mirrored to {mirror.name}: {found[mirror.name][0].source.name} and {name}",
                operation="plan ingress",
                object_name=mirror.name,
                hint="give --rename or --prefix so that each topic has a destination of its own, or --offsets append",
            )
        found.setdefault(mirror.name, []).append(mirror)
    return tuple(replace(each, joined=len(same) > 1) for same in found.values() for each in same)


def find_unmatched(
    topics: Iterable[TopicState], archived: Collection[str], *, include: Sequence[str], exclude: Sequence[str]
) -> tuple[str, ...]:
    """The names that no archived topic has, and if nothing is selected the patterns. `archived` are topic ids.

    A pattern may be given for topics to come.
    """
    known = {topic.name: topic.internal for topic in topics if topic.topic_id in archived}
    selection = select_topics(known, include, exclude)
    return selection.missing if selection.chosen else (*selection.missing, *selection.unmatched)


def plan_mirror_configs(topic: TopicState, overrides: Mapping[str, str], *, replication_factor: int) -> MirrorConfigs:
    """The source's configuration, with what keeps the destination's brokers from changing or deleting records.

    Retention is off while the topic is linked: the log start follows the source's. Compaction runs as at the source.
    """
    planned = plan_new_configs(
        topic, overrides, replication_factor=replication_factor, batch_bytes_max=_BATCH_BYTES, known=None
    )
    effective = {**(topic.effective or {}), **planned.final}
    linked = dict(planned.create)
    linked[CLEANUP_POLICY] = effective.get(CLEANUP_POLICY, "delete")
    # The source's brokers may allow larger batches by their own default.
    linked.setdefault(_MAX_MESSAGE_BYTES, effective.get(_MAX_MESSAGE_BYTES, str(MESSAGE_BYTES_DEFAULT)))
    release = planned.release
    if _MAX_MESSAGE_BYTES not in {*planned.final, *release.delete}:
        release = replace(release, delete=(*release.delete, _MAX_MESSAGE_BYTES))
    return MirrorConfigs(linked=linked, release=release)


def plan_shared_configs(topic: TopicState, overrides: Mapping[str, str], *, replication_factor: int) -> dict[str, str]:
    """The configuration of a topic that is created to be appended to: the source's, with room for the headers."""
    planned = plan_new_configs(
        topic, overrides, replication_factor=replication_factor, batch_bytes_max=_BATCH_BYTES, known=None
    )
    limit = {**(topic.effective or {}), **planned.final}.get(_MAX_MESSAGE_BYTES, str(MESSAGE_BYTES_DEFAULT))
    return {**planned.final, _MAX_MESSAGE_BYTES: str(int(limit) + _HEADERS_BYTES)}


def why_longer(end: int, archive_end: int) -> str | None:
    """Refuse a mirror that ends at `end` and is longer than the archive: returns the reason, or None."""
    if end <= archive_end:
        return None
    return (
        f"the destination ends at {end}, behind the archive's end {archive_end}: the source's log was truncated, or "
        "somebody else has written to the destination"
    )


def why_other_source(mark: LinkMark, partition: PartitionId, end: int) -> str | None:
    """Refuse a mirror of another source topic: returns the reason; None: it is this one's, or has no records yet."""
    if mark.topic_id == partition.topic_id or not end:
        return None
    return "the source topic was deleted and created again, and the destination has the records of the old one"


def why_not_append(mark: LinkMark, each: PartitionId, archive_end: int, log_end: int) -> str | None:
    """Return why a link that appends cannot continue behind its mark; None: it can. `log_end` is the destination's."""
    if mark.topic_id != each.topic_id:
        return (
            "the source topic was deleted and created again, and the link has appended the records of the old one; "
            "another --link appends those of the new one"
        )
    if mark.next_offset > archive_end:
        return (
            f"the link has appended up to offset {mark.next_offset}, and the archive ends at {archive_end}: the "
            "source's log was truncated; another --link appends all of it anew"
        )
    if mark.append is not None and log_end < mark.append.end:
        return (
            f"the destination's log ends at {log_end}, and the link has appended to it up to {mark.append.end}: the "
            "destination has lost records; another --link appends all of them anew"
        )
    return None


def plan_portions(
    rows: pa.Table,
    wanted: Mapping[PartitionId, tuple[int, int]],
    *,
    accept_gaps: bool,
    read: Callable[[Segment], Slice] = slice_of,
) -> dict[PartitionId, MirrorPortion]:
    """The portion of each partition, of which the offsets [position, end) are `wanted`.

    `read` returns the slice of a row as readers get it.

    The slice that ends at the position is included: the end of the log is compared with it. CorruptDataError: two rows
    cover the same offsets.
    """
    faults = find_tiling_faults(rows, {each: extent for each, extent in wanted.items() if extent[0] < extent[1]})
    _refuse_overlaps(faults, wanted)
    lost: dict[PartitionId, list[tuple[int, int, str]]] = {}
    for hole in faults.holes:
        lost.setdefault(hole.partition, []).append((hole.first_offset, hole.end_offset, "no row covers it"))
    slices: dict[PartitionId, list[Slice]] = {}
    pruned: dict[PartitionId, list[tuple[int, int]]] = {}
    for row in decode_rows(_from_positions(rows, wanted)):
        if isinstance(row, Run):
            continue
        partition = row.id
        if isinstance(row, Segment):
            slices.setdefault(partition, []).append(read(row))
        if row.reason in MENDABLE and row.end_offset > wanted[partition][0]:
            lost.setdefault(partition, []).append((row.base_offset, row.end_offset, str(row.reason)))
        if row.reason is GapReason.PRUNED:
            pruned.setdefault(partition, []).append((row.base_offset, row.end_offset))
    portions = {
        each: _portion(extent, slices.get(each, []), sorted(lost.get(each, [])), accept_gaps=accept_gaps)
        for each, extent in wanted.items()
    }
    for each, ranges in pruned.items():
        first, end = wanted[each][0], portions[each].end
        cut = ((max(base, first), min(until, end)) for base, until in ranges)
        portions[each] = replace(portions[each], pruned=tuple(part for part in cut if part[0] < part[1]))
    return portions


def measure_portions(rows: pa.Table, wanted: Mapping[PartitionId, tuple[int, int]]) -> dict[PartitionId, int]:
    """The bytes of the portions of those partitions that have rows, gaps accepted, without a value for each slice.

    `rows` have `SOURCE_COLUMNS`, and may be some of the rows, if they have all rows of their partitions.
    """
    columns = read_columns(rows)
    here = {each: wanted[each] for each in columns.spans if each in wanted}
    _refuse_overlaps(find_tiling_faults(rows), here)
    return {
        each: int(columns.bytes[span][columns.end[span] > here[each][0]].sum())
        for each, span in columns.spans.items()
        if each in here
    }


def _refuse_overlaps(faults: Tiling, wanted: Mapping[PartitionId, tuple[int, int]]) -> None:
    for overlap in faults.overlaps:
        if overlap.partition in wanted and overlap.end_offset > wanted[overlap.partition][0]:
            raise CorruptDataError(
                "two rows of the catalog cover the same offsets",
                operation="plan ingress",
                object_name=str(overlap.partition),
                offset=overlap.first_offset,
                hint="nothing more is appended to this partition; see 'maxbrod check'",
            )


def _portion(
    extent: tuple[int, int], slices: Sequence[Slice], lost: Sequence[tuple[int, int, str]], *, accept_gaps: bool
) -> MirrorPortion:
    position, end = extent
    first_lost = None if accept_gaps else next((each for each in lost if each[0] < end and each[1] > position), None)
    if first_lost is not None:
        end = max(position, first_lost[0])
    kept = [each for each in slices if each.base_offset < end or each.end_offset == position]
    beyond = [each for each in slices if each.end_offset > position]
    return MirrorPortion(
        end=end,
        slices=tuple(kept),
        bytes=sum(each.bytes for each in beyond),
        records=sum(each.records for each in beyond),
        lost=first_lost,
    )


def _from_positions(rows: pa.Table, wanted: Mapping[PartitionId, tuple[int, int]]) -> pa.Table:
    """The rows of these partitions that end at their positions or behind them."""
    rows = rows.filter(pc.field("kind") != Kind.RUN).sort_by(SORT_ORDER)
    columns = read_columns(rows)
    kept = np.zeros(rows.num_rows, np.bool_)
    for partition, span in columns.spans.items():
        if partition in wanted:
            kept[span] = columns.end[span] >= wanted[partition][0]
    return rows.take(np.flatnonzero(kept))

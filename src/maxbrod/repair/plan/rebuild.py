"""From all that objects, snapshots and the remains of the old catalog say to the rows of a new one. Pure.

For each partition the rows tile from the first offset that the archive ever accounted for to the end that its newest
snapshot records, and on to what objects hold without a hole: a run that left no snapshot may have committed it.

Rows that a later run replaced are found in the same way: what a snapshot with an older revision saw is chosen among the
slices of its time, and what the present has not is a replaced row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from maxbrod.catalog.replaced import meets, merge
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Run, Segment
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE
from maxbrod.model import MENDABLE, GapReason, PartitionId
from maxbrod.notices import Notice
from maxbrod.repair.plan.slices import (
    FoundSlice,
    GapEvidence,
    LostRange,
    PrunedRange,
    choose,
    link,
    newest_history,
    overlapping,
    place_of,
)

if TYPE_CHECKING:
    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.catalog.ledger import SliceKey

T = TypeVar("T")
INT64_MAX: Final = 2**63 - 1
_READING_HINT: Final = "compare the topic with its source ('maxbrod compare'), or back it up into a new archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """A run whose snapshot can be read, in the order of runs."""

    run: Run
    snapshot: Snapshot
    modified_ms: int
    """The time at which the store got the snapshot: everything that the run wrote was there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairEvidence:
    """All that a new catalog is made from."""

    slices: Sequence[FoundSlice] = ()
    lost: Sequence[LostRange] = ()
    """Damaged slices, and those that rows of the old catalog name in objects that do not exist."""
    runs: Sequence[KnownRun]
    gaps: Mapping[PartitionId, Sequence[tuple[int, int, GapReason]]] = field(default_factory=dict)
    """Gaps in rows of the old catalog, oldest first."""
    revisions: Mapping[PartitionId, int] = field(default_factory=dict)
    """As the old catalog has them, as far as it can be read."""
    compacted: frozenset[str] = frozenset()
    """Ids of topics that are or were compacted."""
    pruned: Sequence[PrunedRange] = ()
    pruned_slices: Collection[tuple[str, int]] = frozenset()
    """Path and position of slices that were pruned."""
    sure: bool = False
    """True if the ledger names all slices that are no part of the archive any more."""
    settled: Sequence[Segment | Gap] = ()
    """Rows of which the ledger says that they are the archive's."""
    replaced: Sequence[tuple[Segment | Gap, int]] = ()
    """Rows of which the ledger says that a revision replaced them, with its number."""
    retired: Collection[SliceKey] = frozenset()
    """Slices that are no part of the archive as it was last."""


@dataclass(slots=True, kw_only=True)
class Rebuilt:
    rows: list[Segment | Gap] = field(default_factory=list)
    replaced: list[tuple[Segment | Gap, int]] = field(default_factory=list)
    """Rows that a revision replaced, with its number."""
    notices: list[Notice] = field(default_factory=list)
    unnamed: list[FoundSlice] = field(default_factory=list)
    """Slices that no row names: their offsets are in others, or they are of a history that the log has lost."""
    unscanned: list[FoundSlice] = field(default_factory=list)
    """Slices whose transactions must be known first: the rows are not final."""


def rebuild(evidence: RepairEvidence, *, run_id: str, now_ms: int) -> Rebuilt:
    """The rows of every partition that any evidence names."""
    pruned = _grouped(evidence.pruned, lambda found: found.id)
    sure = {_key(row) for row in evidence.settled if isinstance(row, Segment)}

    def is_archived(found: FoundSlice) -> bool:
        gone = (found.slice.path, found.slice.position) in evidence.pruned_slices
        # What the ledger names was brought back since, if it was ever pruned.
        return found.key in sure or (not gone and not any(one.takes(found) for one in pruned.get(found.id, ())))

    slices = _grouped(filter(is_archived, evidence.slices), lambda found: found.id)
    lost = _grouped(evidence.lost, lambda found: found.id)
    settled = _grouped(evidence.settled, _partition_of)
    replaced = _grouped(evidence.replaced, lambda pair: _partition_of(pair[0]))
    known = {partition for run in evidence.runs for partition in run.snapshot.ends}
    names = {found.topic_id: found.topic for found in (*evidence.pruned, *evidence.lost, *evidence.slices)}
    for run in evidence.runs:
        names.update(run.snapshot.topics)
    result = Rebuilt()
    for partition in sorted({*slices, *lost, *known, *evidence.gaps, *pruned, *settled, *replaced}):
        mine = replace(
            evidence,
            slices=slices[partition],
            lost=lost[partition],
            pruned=pruned[partition],
            settled=settled[partition],
            replaced=replaced[partition],
        )
        _PartitionRebuild(
            partition, names.get(partition.topic_id, partition.topic_id), mine, result, run_id, now_ms
        ).rebuild()
    return result


def _grouped(items: Iterable[T], partition: Callable[[T], PartitionId]) -> defaultdict[PartitionId, list[T]]:
    found: defaultdict[PartitionId, list[T]] = defaultdict(list)
    for item in items:
        found[partition(item)].append(item)
    return found


@dataclass(slots=True)
class _PartitionRebuild:
    id: PartitionId
    topic: str
    evidence: RepairEvidence
    """The evidence about this partition, and about all runs."""
    result: Rebuilt
    run_id: str
    now_ms: int

    def rebuild(self) -> None:
        runs = [run for run in self.evidence.runs if self.id in run.snapshot.ends]
        live = self._rows(self._present(), runs, present=True)
        self.result.rows += live
        self._notify(live)
        named = {(row.path, row.position) for row in live if isinstance(row, Segment)}
        named |= self._replaced(runs, live)
        found = self.evidence.slices
        self.result.unnamed += [part for part in found if (part.slice.path, part.slice.position) not in named]

    def _rows(
        self, candidates: Sequence[FoundSlice], runs: Sequence[KnownRun], *, present: bool
    ) -> list[Segment | Gap]:
        """Rows that tile what these runs accounted for; `present`: and what objects hold beyond."""
        end = runs[-1].snapshot.ends[self.id] if runs else None
        if present and end is not None:
            end = max([end, *(row.end_offset for row in self.evidence.settled)])
        chain, undecided, needed = link(_reachable(candidates, end, beyond=present))
        if present:
            self.result.unscanned += needed
            for producer, first in undecided:
                what = f"the transaction of producer {producer} has no marker in the archive"
                hint = "compare with the source, or back the partition up again"
                self._add("undecided", f"{what}: its records count as committed", first, chain[-1].end, hint)
        evidence = self._gap_evidence(runs, chain, present=present)
        rows: list[Segment | Gap] = []
        cursor = self._first(chain, runs, evidence)
        for number, part in enumerate(chain):
            rows += self._gaps(
                cursor, part.base, evidence, self._written_so(chain[number - 1] if number else None, part)
            )
            rows.append(self._segment(part, runs))
            cursor = part.end
        if end is not None and cursor is not None:
            rows += self._gaps(cursor, end, evidence, None)
        return rows

    def _first(self, chain: Sequence[FoundSlice], runs: Sequence[KnownRun], evidence: GapEvidence) -> int | None:
        """The first offset of the partition in the archive; None if there is nothing of it."""
        firsts = [run.snapshot.firsts[self.id] for run in runs if self.id in run.snapshot.firsts]
        ends = [run.snapshot.ends[self.id] for run in runs]
        stated = [base for base, _, _ in evidence.stated] + [base for base, _ in (*evidence.lost, *evidence.pruned)]
        bases = [part.base for part in chain[:1]]
        return min([*firsts[:1], *stated, *bases] or ends[:1], default=None)

    def _gap_evidence(self, runs: Sequence[KnownRun], chain: Sequence[FoundSlice], *, present: bool) -> GapEvidence:
        evidence = GapEvidence(stated=list(self.evidence.gaps.get(self.id, ())))
        for run in runs:
            snapshot = run.snapshot
            evidence.ends.append((snapshot.ends[self.id], snapshot.log_starts.get(self.id)))
            stated = snapshot.gaps.get(self.id, ())
            evidence.stated += [(base, end, _reason(reason)) for base, end, reason in stated]
        gaps = [(row.base_offset, row.end_offset, row.reason) for row in self.evidence.settled if isinstance(row, Gap)]
        evidence.stated += gaps if present else ()
        evidence.pruned = [(pruned.base, pruned.end) for pruned in self.evidence.pruned]
        bases = [part.base for part in chain]
        end = runs[-1].snapshot.ends[self.id] if runs else None
        for gone in self.evidence.lost:
            stop = gone.end
            if stop is None:
                stop = min((base for base in bases if base > gone.base), default=max(end or 0, gone.base + 1))
            evidence.lost.append((gone.base, stop))
        return evidence

    def _written_so(self, before: FoundSlice | None, after: FoundSlice) -> GapReason | None:
        """The reason of a hole between two slices that the same writer put behind each other."""
        if before is None or self.id.topic_id not in self.evidence.compacted:
            return None
        one, other = before.slice, after.slice
        adjacent = one.path == other.path and one.position + one.bytes == other.position
        return GapReason.COMPACTED if adjacent else None

    def _gaps(self, first: int | None, end: int, evidence: GapEvidence, written_so: GapReason | None) -> Iterator[Gap]:
        if first is None or first >= end:
            return
        for base, stop, reason in evidence.explain(first, end, written_so=written_so):
            yield self._gap(base, stop, reason)

    def _gap(self, base: int, end: int, reason: GapReason) -> Gap:
        return Gap(
            topic=self.topic,
            topic_id=self.id.topic_id,
            partition=self.id.partition,
            base_offset=base,
            end_offset=end,
            reason=reason,
            run_id=self.run_id,
            written_at=self.now_ms,
        )

    def _segment(self, part: FoundSlice, runs: Sequence[KnownRun]) -> Segment:
        found = part.slice
        by = next((one.run.run_id for one in runs if one.snapshot.ends[self.id] >= found.end_offset), self.run_id)
        missing = found.end_offset - found.base_offset - found.records
        default = GapReason.COMPACTED if self.id.topic_id in self.evidence.compacted else GapReason.UNEXPLAINED
        if default is GapReason.UNEXPLAINED and missing <= self._erased_in(found.base_offset, found.end_offset):
            default = GapReason.ERASED
        reason = None if not missing else default if part.reason is None else _reason(part.reason)
        return Segment(
            topic=self.topic,
            topic_id=self.id.topic_id,
            partition=self.id.partition,
            **{name: getattr(found, name) for name in SLICE_FIELDS if name != "details"},
            level=part.level,
            reason=reason,
            run_id=part.run_id or by,
            written_at=part.modified_ms if part.written_at is None else part.written_at,
        )

    def _erased_in(self, base: int, end: int) -> int:
        """The number of these offsets that were erased."""
        stated = self.evidence.gaps.get(self.id, ())
        erased = ((first, stop) for first, stop, reason in stated if reason is GapReason.ERASED)
        return sum(max(min(stop, end) - max(first, base), 0) for first, stop in erased)

    # What the archive is now

    def _present(self) -> list[FoundSlice]:
        """The slices of the archive as it was last."""
        sure = {_key(row) for row in self.evidence.settled if isinstance(row, Segment)}
        # What can be read again may have been, by a commit of which nothing else is left.
        gaps = merge(
            (row.base_offset, row.end_offset)
            for row in self.evidence.settled
            if isinstance(row, Gap) and row.reason not in MENDABLE
        )
        candidates = [
            part
            for part in self.evidence.slices
            if part.key not in sure and part.key not in self.evidence.retired and not meets(gaps, part.base, part.end)
        ]
        chain = choose(candidates, [part for part in self.evidence.slices if part.key in sure])
        if not self.evidence.sure:
            self._notify_doubt(chain, candidates, sure)
        lost = merge((range_.base, INT64_MAX if range_.end is None else range_.end) for range_ in self.evidence.lost)
        spare = choose(
            [
                part
                for part in self.evidence.slices
                if part.key in self.evidence.retired
                and part.key not in sure
                and meets(lost, part.base, part.end)
                and not meets(gaps, part.base, part.end)
                and not overlapping(part, chain)
            ]
        )
        for part in spare:
            what = (
                "what replaced them is lost or damaged: an earlier reading is used instead, with records removed since"
            )
            self._add("reading", what, part.base, part.end, _READING_HINT)
        return sorted([*chain, *spare], key=lambda part: part.base)

    def _notify_doubt(
        self, chain: Sequence[FoundSlice], candidates: Sequence[FoundSlice], sure: Collection[SliceKey]
    ) -> None:
        """Say where objects hold offsets in several readings, and neither epochs nor the ledger tell the newest."""
        chosen, compacted = {part.key for part in chain}, self.id.topic_id in self.evidence.compacted
        guessed = [part for part in chain if part.key not in sure]
        differing = [
            part
            for part in newest_history(candidates)
            if part.key not in chosen
            and (others := overlapping(part, guessed))
            and not _is_same(part, others, compacted=compacted)
        ]
        if differing:
            what = (
                "objects hold them in several readings, and nothing says which is the newest: the one that covers most "
                "is taken, and records that were removed since may be back"
            )
            first, end = min(part.base for part in differing), max(piece.end for piece in differing)
            self._add("reading", what, first, end, _READING_HINT)

    # What was there before

    def _replaced(self, runs: Sequence[KnownRun], live: Sequence[Segment | Gap]) -> set[tuple[str, int]]:
        """Record rows that revisions replaced; returns the slices that they name."""
        last: dict[int, int] = {}
        for number, run in enumerate(runs):
            last[run.snapshot.revisions.get(self.id, 0)] = number
        newest = max([*last, self.evidence.revisions.get(self.id, 0)], default=0)
        named: set[tuple[str, int]] = set()
        if not newest:
            return named
        there = {part.key for part in self.evidence.slices}
        known = [(_as_found(row, there), revision) for row, revision in self.evidence.replaced]
        self.result.replaced += known
        named |= {(row.path, row.position) for row, _ in known if isinstance(row, Segment)}
        after = {_identity(row) for row in (*live, *(row for row, _ in known))}
        recorded = max((revision for _, revision in known), default=0)
        # From its first document on, the ledger has all revisions.
        first = min((revision for _, revision in known), default=newest + 1)
        for revision in sorted((end for end in last if end + 1 < first), reverse=True):
            then = runs[: last[revision] + 1]
            rows = self._rows(choose(self._written_by(then)), then, present=False)
            # The next revision that a snapshot knows: of several in one run, the first.
            gone = [row for row in rows if _identity(row) not in after]
            self.result.replaced += [(row, revision + 1) for row in gone]
            named |= {(row.path, row.position) for row in gone if isinstance(row, Segment)}
            recorded = max(recorded, revision + 1 if gone else 0)
            after = {_identity(row) for row in rows}
        if recorded < newest:
            # Later revisions must get higher numbers than snapshots record: an empty row far behind every log counts.
            marker = self._gap(INT64_MAX - 1, INT64_MAX, GapReason.UNEXPLAINED)
            self.result.replaced.append((marker, newest))
        return named

    def _written_by(self, runs: Sequence[KnownRun]) -> list[FoundSlice]:
        """The slices that were there when the last of these runs ended.

        Where they lack offsets that the run did not call a gap, a compaction of segments has replaced them since: then
        its slices stand for them.
        """
        ids, at = {run.run.run_id for run in runs}, runs[-1].modified_ms
        all_ids = {run.run.run_id for run in self.evidence.runs}
        then: list[FoundSlice] = []
        later: list[FoundSlice] = []
        for part in self.evidence.slices:
            there = part.run_id in ids if part.run_id in all_ids else part.modified_ms <= at
            (then if there else later).append(part)
        then = choose(then)
        gaps = [(base, end) for run in runs for base, end, _ in run.snapshot.gaps.get(self.id, ())]
        gaps += [(pruned.base, pruned.end) for pruned in self.evidence.pruned]
        taken = [*((part.base, part.end) for part in then), *gaps]
        return [*then, *(part for part in later if not any(base < part.end and part.base < end for base, end in taken))]

    # What is said

    def _notify(self, rows: Iterable[Segment | Gap]) -> None:
        for row in rows:
            if isinstance(row, Gap) and row.reason is GapReason.CORRUPT:
                # Each damaged object has a notice of its own.
                continue
            if row.reason is GapReason.UNEXPLAINED:
                what = "no object holds them, and nothing says why" if isinstance(row, Gap) else "some have no record"
                hint = "the next backup reads them again, if the log still has them"
                self._add("unexplained", what, row.base_offset, row.end_offset, hint)

    def _add(self, kind: str, message: str, first: int, end: int, hint: str) -> None:
        self.result.notices.append(
            Notice(
                kind=kind,
                message=message,
                topic=self.topic,
                partition=self.id.partition,
                first_offset=first,
                end_offset=end,
                hint=hint,
                exit_code=EXIT_INCOMPLETE,
            )
        )


def lost_notices(lost: Iterable[LostRange]) -> list[Notice]:
    """One for each damaged part of an object. None is silent."""
    return [
        Notice(
            kind="corrupt",
            message=f"{range_.path} is {'lost' if range_.missing else 'damaged'}: {range_.message}",
            topic=range_.topic,
            partition=range_.partition,
            first_offset=range_.base,
            end_offset=range_.base + 1 if range_.end is None else range_.end,
            hint="the next backup reads these offsets again, if the log still has them",
            exit_code=EXIT_CORRUPT,
        )
        for range_ in lost
    ]


def _reachable(chain: Sequence[FoundSlice], end: int | None, *, beyond: bool) -> list[FoundSlice]:
    """The slices up to an end, and behind it those that follow each other: a killed run may have left holes there."""
    if end is None:
        return list(chain)
    kept: list[FoundSlice] = []
    cursor = end
    for part in chain:
        if part.base >= end and (not beyond or part.base != cursor):
            break
        kept.append(part)
        cursor = max(cursor, part.end)
    return kept


def _is_same(one: FoundSlice, others: Sequence[FoundSlice], *, compacted: bool) -> bool:
    """True if slices that share offsets surely are of one reading: equally many records, or one for each offset.

    Of a compacted topic the latter does not tell: another reading may have lost what is beside it.
    """
    whole = not compacted and all(part.slice.records == part.end - part.base for part in (one, *others))
    return whole or any(
        (other.base, other.end, other.slice.records) == (one.base, one.end, one.slice.records) for other in others
    )


def _as_found(row: Segment | Gap, there: Collection[SliceKey]) -> Segment | Gap:
    """A replaced row, as a gap if its slice is not there any more."""
    if isinstance(row, Gap) or _key(row) in there:
        return row
    offsets: dict[str, Any] = {
        name: getattr(row, name) for name in ("base_offset", "end_offset", "run_id", "written_at")
    }
    return Gap(**place_of(row), **offsets, reason=GapReason.CORRUPT)


def _partition_of(row: Segment | Gap) -> PartitionId:
    return PartitionId(topic_id=row.topic_id, partition=row.partition)


def _key(row: Segment) -> SliceKey:
    return row.path, row.position, row.base_offset, row.end_offset


def _identity(row: Segment | Gap) -> tuple[object, ...]:
    path = (row.path, row.position) if isinstance(row, Segment) else (None, row.reason)
    return row.base_offset, row.end_offset, *path


def _reason(text: str) -> GapReason:
    """A reason of a newer release is not known: then nothing is explained."""
    try:
        return GapReason(text)
    except ValueError:
        return GapReason.UNEXPLAINED

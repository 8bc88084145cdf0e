"""From all that objects, snapshots and the remains of the old catalog say to the rows of a new one. Pure.

For each partition the rows tile from the first offset that the archive ever accounted for to the end that its newest
snapshot records, and on to what objects hold without a hole: a run that left no snapshot may have committed it.

Rows that a later run replaced are found in the same way: what a snapshot with an older revision saw is chosen among the
slices of its time, and what the present has not is a replaced row.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maxbrod.catalog.replaced import meets, merge
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Run, Segment
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE
from maxbrod.model import MENDABLE, GapReason, PartitionId
from maxbrod.notices import Notice
from maxbrod.repair.plan.chain import GapEvidence, RunView, choose, link, newest_history, overlapping

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.catalog.ledger import SliceKey
    from maxbrod.repair.plan.found import FoundSlice, LostRange, PrunedRange

INT64_MAX: Final = 2**63 - 1
_PLACE: Final = ("topic", "topic_id", "partition", "base_offset", "end_offset")
_READING_HINT: Final = "compare the topic with its source ('maxbrod compare'), or read it afresh into a new archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """A run whose snapshot can be read, in the order of runs."""

    run: Run
    snapshot: Snapshot
    modified_ms: int
    """When the store got the snapshot: everything that the run wrote was there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """All that a new catalog is made from."""

    slices: Sequence[FoundSlice]
    lost: Sequence[LostRange]
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
    """Whether the ledger names all slices that are no part of the archive any more."""
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


def rebuild(remains: Remains, *, run_id: str, now_ms: int) -> Rebuilt:
    """The rows of every partition that any evidence names."""
    pruned: dict[PartitionId, list[PrunedRange]] = defaultdict(list)
    for one in remains.pruned:
        pruned[one.id].append(one)
    slices: dict[PartitionId, list[FoundSlice]] = defaultdict(list)
    sure = {_key(row) for row in remains.settled if isinstance(row, Segment)}
    for each in remains.slices:
        gone = (each.slice.path, each.slice.position) in remains.pruned_slices
        # What the ledger names was brought back since, if it was ever pruned.
        if each.key in sure or (not gone and not any(one.takes(each) for one in pruned.get(each.id, ()))):
            slices[each.id].append(each)
    lost: dict[PartitionId, list[LostRange]] = defaultdict(list)
    for missed in remains.lost:
        lost[missed.id].append(missed)
    names = _names(remains)
    known = {partition for run in remains.runs for partition in run.snapshot.ends}
    result = Rebuilt()
    settled: dict[PartitionId, list[Segment | Gap]] = defaultdict(list)
    for row in remains.settled:
        settled[_partition_of(row)].append(row)
    replaced: dict[PartitionId, list[tuple[Segment | Gap, int]]] = defaultdict(list)
    for row, revision in remains.replaced:
        replaced[_partition_of(row)].append((row, revision))
    for partition in sorted({*slices, *lost, *known, *remains.gaps, *pruned, *settled, *replaced}):
        _Partition(
            partition,
            names.get(partition.topic_id, partition.topic_id),
            remains,
            slices.get(partition, ()),
            lost.get(partition, ()),
            pruned.get(partition, ()),
            settled.get(partition, ()),
            replaced.get(partition, ()),
            result,
            run_id,
            now_ms,
        ).rebuild()
    return result


def _names(remains: Remains) -> dict[str, str]:
    found = {each.id.topic_id: each.topic for each in remains.pruned}
    found.update({each.topic_id: each.topic for each in remains.lost})
    found.update({each.topic_id: each.topic for each in remains.slices})
    for run in remains.runs:
        found.update(run.snapshot.topics)
    return found


@dataclass(slots=True)
class _Partition:
    id: PartitionId
    topic: str
    remains: Remains
    slices: Sequence[FoundSlice]
    lost: Sequence[LostRange]
    pruned: Sequence[PrunedRange]
    settled: Sequence[Segment | Gap]
    replaced: Sequence[tuple[Segment | Gap, int]]
    result: Rebuilt
    run_id: str
    now_ms: int

    def rebuild(self) -> None:
        runs = [run for run in self.remains.runs if self.id in run.snapshot.ends]
        live = self._rows(self._present(), runs, present=True)
        self.result.rows += live
        self._notify(live)
        named = {(row.path, row.position) for row in live if isinstance(row, Segment)}
        named |= self._replaced(runs, live)
        self.result.unnamed += [each for each in self.slices if (each.slice.path, each.slice.position) not in named]

    def _rows(
        self, candidates: Sequence[FoundSlice], runs: Sequence[KnownRun], *, present: bool
    ) -> list[Segment | Gap]:
        """Rows that tile what these runs accounted for; `present`: and what objects hold beyond."""
        end = runs[-1].snapshot.ends[self.id] if runs else None
        if present and end is not None:
            end = max([end, *(row.end_offset for row in self.settled)])
        linked = link(_reachable(candidates, end, beyond=present))
        if present:
            self.result.unscanned += linked.needed
            self._notify_undecided(linked.undecided, linked.slices)
        chain, evidence = linked.slices, self._evidence(runs, linked.slices, present=present)
        rows: list[Segment | Gap] = []
        cursor = self._first(chain, runs, evidence)
        for number, each in enumerate(chain):
            rows += self._gaps(
                cursor, each.base, evidence, self._written_so(chain[number - 1] if number else None, each)
            )
            rows.append(self._segment(each, runs))
            cursor = each.end
        if end is not None and cursor is not None:
            rows += self._gaps(cursor, end, evidence, None)
        return rows

    def _first(self, chain: Sequence[FoundSlice], runs: Sequence[KnownRun], evidence: GapEvidence) -> int | None:
        """Where the archive of the partition begins; None if there is nothing of it."""
        firsts = [run.snapshot.firsts[self.id] for run in runs if self.id in run.snapshot.firsts]
        ends = [run.snapshot.ends[self.id] for run in runs]
        stated = [base for base, _, _ in (*evidence.stated, *evidence.lost)] + [base for base, _ in evidence.pruned]
        bases = [each.base for each in chain[:1]]
        return min([*firsts[:1], *stated, *bases] or ends[:1], default=None)

    def _evidence(self, runs: Sequence[KnownRun], chain: Sequence[FoundSlice], *, present: bool) -> GapEvidence:
        evidence = GapEvidence(stated=list(self.remains.gaps.get(self.id, ())))
        for run in runs:
            snapshot = run.snapshot
            evidence.runs.append(RunView(end=snapshot.ends[self.id], log_start=snapshot.log_starts.get(self.id)))
            stated = snapshot.gaps.get(self.id, ())
            evidence.stated += [(base, end, _reason(reason)) for base, end, reason in stated]
        gaps = [(row.base_offset, row.end_offset, row.reason) for row in self.settled if isinstance(row, Gap)]
        evidence.stated += gaps if present else ()
        evidence.pruned = [(each.base, each.end) for each in self.pruned]
        bases = [each.base for each in chain]
        end = runs[-1].snapshot.ends[self.id] if runs else None
        for gone in self.lost:
            stop = gone.end
            if stop is None:
                stop = min((base for base in bases if base > gone.base), default=max(end or 0, gone.base + 1))
            evidence.lost.append((gone.base, stop, gone.message))
        return evidence

    def _written_so(self, before: FoundSlice | None, after: FoundSlice) -> GapReason | None:
        """The reason of a hole between two slices that the same writer put behind each other."""
        if before is None or self.id.topic_id not in self.remains.compacted:
            return None
        one, other = before.slice, after.slice
        adjacent = one.path == other.path and one.position + one.bytes == other.position
        return GapReason.COMPACTED if adjacent else None

    def _gaps(self, first: int | None, end: int, evidence: GapEvidence, written_so: GapReason | None) -> Iterator[Gap]:
        if first is None or first >= end:
            return
        for base, stop, reason in evidence.explain(first, end, written_so=written_so):
            yield Gap(
                topic=self.topic,
                topic_id=self.id.topic_id,
                partition=self.id.partition,
                base_offset=base,
                end_offset=stop,
                reason=reason,
                run_id=self.run_id,
                written_at=self.now_ms,
            )

    def _segment(self, each: FoundSlice, runs: Sequence[KnownRun]) -> Segment:
        found = each.slice
        by = next((one.run.run_id for one in runs if one.snapshot.ends[self.id] >= found.end_offset), self.run_id)
        missing = found.end_offset - found.base_offset - found.records
        default = GapReason.COMPACTED if self.id.topic_id in self.remains.compacted else GapReason.UNEXPLAINED
        reason = None if not missing else default if each.reason is None else _reason(each.reason)
        return Segment(
            topic=self.topic,
            topic_id=self.id.topic_id,
            partition=self.id.partition,
            **{name: getattr(found, name) for name in SLICE_FIELDS if name != "details"},
            level=each.level,
            reason=reason,
            run_id=each.run_id or by,
            written_at=each.modified_ms if each.written_at is None else each.written_at,
        )

    # What the archive is now

    def _present(self) -> list[FoundSlice]:
        """The slices of the archive as it was last."""
        sure = {_key(row) for row in self.settled if isinstance(row, Segment)}
        # What can be read again may have been, by a commit of which nothing else is left.
        gaps = merge(
            (row.base_offset, row.end_offset)
            for row in self.settled
            if isinstance(row, Gap) and row.reason not in MENDABLE
        )
        candidates = [
            each
            for each in self.slices
            if each.key not in sure and each.key not in self.remains.retired and not meets(gaps, each.base, each.end)
        ]
        chain = choose(candidates, [each for each in self.slices if each.key in sure])
        if not self.remains.sure:
            self._notify_doubt(chain, candidates, sure)
        lost = merge((each.base, INT64_MAX if each.end is None else each.end) for each in self.lost)
        spare = choose(
            [
                each
                for each in self.slices
                if each.key in self.remains.retired
                and each.key not in sure
                and meets(lost, each.base, each.end)
                and not meets(gaps, each.base, each.end)
                and not overlapping(each, chain)
            ]
        )
        for each in spare:
            what = "what replaced them is lost or damaged: an earlier reading stands in, with records removed since"
            self._add("reading", what, each.base, each.end, _READING_HINT, EXIT_INCOMPLETE)
        return sorted([*chain, *spare], key=lambda each: each.base)

    def _notify_doubt(
        self, chain: Sequence[FoundSlice], candidates: Sequence[FoundSlice], sure: Collection[SliceKey]
    ) -> None:
        """Say where objects hold offsets in several readings, and neither epochs nor the ledger tell the newest."""
        chosen, compacted = {each.key for each in chain}, self.id.topic_id in self.remains.compacted
        guessed = [each for each in chain if each.key not in sure]
        differing = [
            each
            for each in newest_history(candidates)
            if each.key not in chosen
            and (others := overlapping(each, guessed))
            and not _is_same(each, others, compacted=compacted)
        ]
        if differing:
            what = (
                "objects hold them in several readings, and nothing says which is the newest: the one that covers most "
                "is taken, and records that were removed since may be back"
            )
            first, end = min(each.base for each in differing), max(each.end for each in differing)
            self._add("reading", what, first, end, _READING_HINT, EXIT_INCOMPLETE)

    # What was there before

    def _replaced(self, runs: Sequence[KnownRun], live: Sequence[Segment | Gap]) -> set[tuple[str, int]]:
        """Record rows that revisions replaced; returns the slices that they name."""
        last: dict[int, int] = {}
        for number, each in enumerate(runs):
            last[each.snapshot.revisions.get(self.id, 0)] = number
        newest = max([*last, self.remains.revisions.get(self.id, 0)], default=0)
        named: set[tuple[str, int]] = set()
        if not newest:
            return named
        there = {each.key for each in self.slices}
        known = [(_as_found(row, there), revision) for row, revision in self.replaced]
        self.result.replaced += known
        named |= {(row.path, row.position) for row, _ in known if isinstance(row, Segment)}
        after = {_identity(row) for row in (*live, *(row for row, _ in known))}
        recorded = max((revision for _, revision in known), default=0)
        # From its first document on, the ledger has all revisions.
        first = min((revision for _, revision in known), default=newest + 1)
        for revision in sorted((each for each in last if each + 1 < first), reverse=True):
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
            marker = Gap(
                topic=self.topic,
                topic_id=self.id.topic_id,
                partition=self.id.partition,
                base_offset=INT64_MAX - 1,
                end_offset=INT64_MAX,
                reason=GapReason.UNEXPLAINED,
                run_id=self.run_id,
                written_at=self.now_ms,
            )
            self.result.replaced.append((marker, newest))
        return named

    def _written_by(self, runs: Sequence[KnownRun]) -> list[FoundSlice]:
        """The slices that were there when the last of these runs ended.

        Where they lack offsets that the run did not call a gap, a compaction of segments has replaced them since: then
        its slices stand for them.
        """
        ids, at = {run.run.run_id for run in runs}, runs[-1].modified_ms
        all_ids = {run.run.run_id for run in self.remains.runs}
        then: list[FoundSlice] = []
        later: list[FoundSlice] = []
        for each in self.slices:
            there = each.run_id in ids if each.run_id in all_ids else each.modified_ms <= at
            (then if there else later).append(each)
        then = choose(then)
        gaps = [(base, end) for run in runs for base, end, _ in run.snapshot.gaps.get(self.id, ())]
        gaps += [(each.base, each.end) for each in self.pruned]
        taken = [*((each.base, each.end) for each in then), *gaps]
        return [*then, *(each for each in later if not any(base < each.end and each.base < end for base, end in taken))]

    # What is said

    def _notify(self, rows: Iterable[Segment | Gap]) -> None:
        for row in rows:
            if isinstance(row, Gap) and row.reason is GapReason.CORRUPT:
                # Each damaged object has a notice of its own.
                continue
            if row.reason is GapReason.UNEXPLAINED:
                what = "no object holds them, and nothing says why" if isinstance(row, Gap) else "some have no record"
                hint = "the next backup reads them again, if the log still has them"
                self._add("unexplained", what, row.base_offset, row.end_offset, hint, EXIT_INCOMPLETE)

    def _notify_undecided(self, undecided: Sequence[tuple[int, int]], chain: Sequence[FoundSlice]) -> None:
        for producer, first in undecided:
            message = (
                f"the transaction of producer {producer} has no marker in the archive: its records count as committed"
            )
            hint = "compare with the source, or back the partition up again"
            self._add("undecided", message, first, chain[-1].end, hint, EXIT_INCOMPLETE)

    def _add(self, kind: str, message: str, first: int, end: int, hint: str, exit_code: int) -> None:
        self.result.notices.append(
            Notice(
                kind=kind,
                message=message,
                topic=self.topic,
                partition=self.id.partition,
                first_offset=first,
                end_offset=end,
                hint=hint,
                exit_code=exit_code,
            )
        )


def lost_notices(lost: Iterable[LostRange]) -> list[Notice]:
    """One for each damaged part of an object. None is silent."""
    return [
        Notice(
            kind="corrupt",
            message=f"{each.path} is {'lost' if each.missing else 'damaged'}: {each.message}",
            topic=each.topic,
            partition=each.partition,
            first_offset=each.base,
            end_offset=each.base + 1 if each.end is None else each.end,
            hint="the next backup reads these offsets again, if the log still has them",
            exit_code=EXIT_CORRUPT,
        )
        for each in lost
    ]


def _reachable(chain: Sequence[FoundSlice], end: int | None, *, beyond: bool) -> list[FoundSlice]:
    """The slices up to an end, and behind it those that follow each other: a killed run may have left holes there."""
    if end is None:
        return list(chain)
    kept: list[FoundSlice] = []
    cursor = end
    for each in chain:
        if each.base >= end and (not beyond or each.base != cursor):
            break
        kept.append(each)
        cursor = max(cursor, each.end)
    return kept


def _is_same(one: FoundSlice, others: Sequence[FoundSlice], *, compacted: bool) -> bool:
    """True if slices that share offsets surely are of one reading: equally many records, or one for each offset.

    Of a compacted topic the latter does not tell: another reading may have lost what is beside it.
    """
    whole = not compacted and all(each.slice.records == each.end - each.base for each in (one, *others))
    return whole or any(
        (other.base, other.end, other.slice.records) == (one.base, one.end, one.slice.records) for other in others
    )


def _as_found(row: Segment | Gap, there: Collection[SliceKey]) -> Segment | Gap:
    """A replaced row, as a gap if its slice is not there any more."""
    if isinstance(row, Gap) or _key(row) in there:
        return row
    place: dict[str, Any] = {name: getattr(row, name) for name in _PLACE}
    return Gap(**place, reason=GapReason.CORRUPT, run_id=row.run_id, written_at=row.written_at)


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

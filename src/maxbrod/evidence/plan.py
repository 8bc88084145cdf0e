"""What an archive can prove of a period, from what was read of it: pure.

What is not recorded is listed as unknown, and what nobody has tried as not tested. Neither is ever taken for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.archive import PROOFS_KEPT, Proof, ProofKind
from maxbrod.archive.holds import Hold
from maxbrod.archive.runs import RunSummary
from maxbrod.archive.undo import UNDO, UNDO_UNTIL, UNDOES
from maxbrod.errors import EXIT_DONE
from maxbrod.evidence.report import (
    CatalogSignature,
    CommandEvidence,
    CopyEvidence,
    ErasureEvidence,
    EvidenceReport,
    HoldEvidence,
    KeyEvidence,
    ProofEvidence,
    PruneEvidence,
    RecordedGaps,
    RunEvidence,
    TopicEvidence,
)
from maxbrod.inspect.listing import TopicListing, TopicSummary
from maxbrod.text import counted

GAP_COLUMNS: Final = ("topic", "topic_id", "base_offset", "end_offset", "reason", "run_id", "written_at")
_CHECKS: Final = frozenset({ProofKind.QUICK_CHECK, ProofKind.DEEP_CHECK})
_RUNS_LISTED: Final = 10_000
_NAMED: Final = 20
_UNDOES_PARTLY: Final = "undoes_in_part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A span of time, the end left out."""

    since_ms: int | None
    until_ms: int

    def has(self, time_ms: int) -> bool:
        return (self.since_ms is None or self.since_ms <= time_ms) and time_ms < self.until_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredFacts:
    """What was read of an archive."""

    listing: TopicListing
    archive_id: str | None
    version: int
    runs: Sequence[RunSummary]
    gaps: pa.Table
    """Rows of kind gap, with `GAP_COLUMNS`."""
    proofs: Sequence[Proof]
    holds: Sequence[Hold]
    erasures: Sequence[ErasureEvidence] = ()
    encrypted: bool = False
    keys: Sequence[KeyEvidence] = ()
    catalog_signature: CatalogSignature | None = None
    unreadable: Sequence[str] = field(default=())
    """Objects that could not be read, and so are not told of."""


def evidence_of(facts: GatheredFacts, period: Period, *, made_at_ms: int, release: str) -> EvidenceReport:
    runs = [run for run in facts.runs if period.has(run.finished_at)]
    proofs = [proof for proof in facts.proofs if period.has(proof.finished_at_ms)]
    drills = [proof for proof in proofs if proof.kind is ProofKind.DRILL]
    drilled = _drilled(drills)
    topics = tuple(_topic(topic, drilled) for topic in facts.listing.topics)
    return EvidenceReport(
        archive=facts.listing.archive,
        archive_id=facts.archive_id,
        layout=facts.listing.layout,
        version=facts.version,
        maxbrod=release,
        made_at_ms=made_at_ms,
        since_ms=period.since_ms,
        until_ms=period.until_ms,
        recovery_point_ms=facts.listing.recovery_point,
        partial=facts.listing.partial,
        behind=facts.listing.behind,
        topics=topics,
        gaps=tuple(_gaps(facts.gaps, facts.runs, period)),
        commands=tuple(_commands(runs)),
        runs=tuple(_run(run) for run in runs[-_RUNS_LISTED:]),
        runs_left_out=max(0, len(runs) - _RUNS_LISTED),
        drills=tuple(map(_proof, drills)),
        checks=tuple(_proof(proof) for proof in proofs if proof.kind in _CHECKS),
        copies=tuple(_copy(proof) for proof in proofs if proof.kind is ProofKind.COPY),
        prunes=tuple(_prunes(runs, facts.runs)),
        erasures=tuple(one for one in facts.erasures if period.has(one.at_ms)),
        holds=tuple(_hold(hold) for hold in facts.holds if _was_held(hold, period)),
        encrypted=facts.encrypted,
        keys=tuple(one for one in facts.keys if one.at_ms is None or period.has(one.at_ms)),
        catalog_signature=facts.catalog_signature,
        not_tested=tuple(_not_tested(topics, drills, proofs)),
        unknown=tuple(_unknown(facts, period)),
    )


def _topic(topic: TopicSummary, drilled: Mapping[str, int]) -> TopicEvidence:
    return TopicEvidence(
        topic=topic.topic,
        topic_id=topic.topic_id,
        newest=topic.newest,
        partitions=topic.partitions,
        offsets=topic.offsets,
        records=topic.records,
        bytes=topic.bytes,
        first_timestamp_ms=topic.min_timestamp,
        last_timestamp_ms=topic.max_timestamp,
        recovery_point_ms=topic.recovery_point,
        last_seen=topic.last_seen,
        gaps=dict(topic.gaps),
        # A drill restores the newest topic of a name.
        drilled_at_ms=drilled.get(topic.topic) if topic.newest else None,
    )


def _drilled(drills: Iterable[Proof]) -> dict[str, int]:
    """For each topic the last drill in which all that was drawn of it came back equal."""
    found: dict[str, int] = {}
    for drill in drills:
        for topic in _list(drill.details.get("topics")):
            found[topic] = max(drill.finished_at_ms, found.get(topic, drill.finished_at_ms))
    return found


def _gaps(rows: pa.Table, runs: Sequence[RunSummary], period: Period) -> Iterator[RecordedGaps]:
    """Gaps by topic and reason. There may be millions of rows: they are added up as columns.

    A gap was recorded when its run ended: a prune leaves the time of the rows that were there. Where the run is not
    known any more, the row's time counts.
    """
    names, ends = pa.array([run.run_id for run in runs], pa.string()), [run.finished_at for run in runs]
    place = pc.index_in(rows["run_id"], value_set=names)
    recorded = pc.coalesce(pc.take(pa.chunked_array([pa.array(ends, pa.int64())]), place), rows["written_at"])
    rows = rows.set_column(rows.schema.get_field_index("written_at"), "written_at", recorded)
    mask = pc.less(recorded, period.until_ms)
    if period.since_ms is not None:
        mask = pc.and_(mask, pc.greater_equal(recorded, period.since_ms))
    rows = rows.filter(mask)
    rows = rows.append_column("offsets", pc.subtract(rows["end_offset"], rows["base_offset"]))
    measures = [("offsets", "sum"), ("offsets", "count"), ("written_at", "min"), ("written_at", "max")]
    found = rows.group_by(["topic", "topic_id", "reason"]).aggregate(measures)
    order = [("topic", "ascending"), ("topic_id", "ascending"), ("reason", "ascending")]
    for row in found.sort_by(order).to_pylist():
        yield RecordedGaps(
            topic=row["topic"],
            topic_id=row["topic_id"],
            reason=row["reason"],
            ranges=row["offsets_count"],
            offsets=row["offsets_sum"],
            first_recorded_ms=row["written_at_min"],
            last_recorded_ms=row["written_at_max"],
        )


def _run(run: RunSummary) -> RunEvidence:
    return RunEvidence(
        run_id=run.run_id,
        command=run.command,
        started_at_ms=run.started_at,
        finished_at_ms=run.finished_at,
        exit_code=run.exit_code,
        stopped=run.stopped,
        records=run.records,
        bytes=run.bytes,
        topics=run.topics,
    )


def _commands(runs: Sequence[RunSummary]) -> Iterator[CommandEvidence]:
    by_command: dict[str, list[RunSummary]] = {}
    for run in runs:
        by_command.setdefault(run.command or "unknown", []).append(run)
    for command, mine in sorted(by_command.items()):
        good = [run.finished_at for run in mine if run.exit_code == EXIT_DONE and not run.stopped]
        unknown = sum(run.exit_code is None for run in mine)
        yield CommandEvidence(
            command=command,
            runs=len(mine),
            succeeded=len(good),
            failed=len(mine) - len(good) - unknown,
            unknown=unknown,
            longest_pause_ms=max((after - before for before, after in pairwise(sorted(good))), default=None),
        )


def _copy(proof: Proof) -> CopyEvidence:
    return CopyEvidence(
        at_ms=proof.finished_at_ms,
        target=str(proof.details.get("target")),
        version=_count(proof.details.get("version")),
        verdict=proof.verdict,
        sound=proof.sound,
    )


def _proof(proof: Proof) -> ProofEvidence:
    details = proof.details
    return ProofEvidence(
        kind=str(proof.kind),
        verdict=proof.verdict,
        sound=proof.sound,
        started_at_ms=proof.started_at_ms,
        finished_at_ms=proof.finished_at_ms,
        partitions=_count(details.get("partitions")),
        partitions_known=_count(details.get("partitions_known")),
        records=_count(details.get("records")),
        restore_s=_number(details.get("restore_s")),
        share=_number(details.get("share")),
    )


def _prunes(runs: Sequence[RunSummary], every: Sequence[RunSummary]) -> Iterator[PruneEvidence]:
    """Runs that took records away on purpose: those that have an undo document."""
    undone = {run.statistics.get(name) for run in every for name in (UNDOES, _UNDOES_PARTLY)}
    for run in runs:
        if run.statistics.get(UNDO) is not None or run.command == "prune":
            yield PruneEvidence(
                run_id=run.run_id,
                command=run.command or "unknown",
                at_ms=run.finished_at,
                records=run.records,
                bytes=run.bytes,
                topics=run.topics,
                undo_until_ms=_count(run.statistics.get(UNDO_UNTIL)),
                undone=run.run_id in undone,
            )


def _hold(hold: Hold) -> HoldEvidence:
    released = hold.released
    return HoldEvidence(
        id=hold.id,
        what=hold.what,
        who=hold.who,
        why=hold.why,
        at_ms=hold.at_ms,
        released_at_ms=None if released is None else released.at_ms,
        released_by=None if released is None else released.who,
        released_why=None if released is None else released.why,
    )


def _was_held(hold: Hold, period: Period) -> bool:
    ended = hold.released is not None and period.since_ms is not None and hold.released.at_ms < period.since_ms
    return hold.at_ms < period.until_ms and not ended


def _not_tested(topics: Sequence[TopicEvidence], drills: Sequence[Proof], proofs: Sequence[Proof]) -> Iterator[str]:
    good = [drill for drill in drills if drill.sound]
    if not good:
        yield "no drill in this period has proven that the archive can be restored: the recovery time is not measured"
    else:
        untested = sorted(topic.topic for topic in topics if topic.records and topic.drilled_at_ms is None)
        if untested:
            named = ", ".join(untested[:_NAMED]) + (f" and {len(untested) - _NAMED:,} more" * (len(untested) > _NAMED))
            yield f"no drill in this period has restored records of {counted(len(untested), 'topic')}: {named}"
        last = max(good, key=lambda drill: drill.finished_at_ms)
        tried, known = _count(last.details.get("partitions")), _count(last.details.get("partitions_known"))
        if tried is not None and known is not None and tried < known:
            yield f"the last drill restored {tried:,} of {counted(known, 'partition')}; the others were not tried"
        yield "drills restore into topics of their own: consumer groups, ACLs and applications are not tried"
    deep = [proof for proof in proofs if proof.kind is ProofKind.DEEP_CHECK and proof.sound]
    if not deep:
        yield "no deep check in this period has read the archive: damage to stored bytes would not be known"
    else:
        share = max(_number(proof.details.get("share")) or 0.0 for proof in deep)
        if share < 1:
            yield f"no deep check in this period has read everything: at most {share:.1%} of the slices at a time"


def _unknown(facts: GatheredFacts, period: Period) -> Iterator[str]:
    listing = facts.listing
    if listing.recovery_point is None:
        yield "up to which moment everything can be restored: there is no recovery point" + (
            ", because topics may have been hidden from the last backup" if listing.partial else ""
        )
    if listing.unreadable_snapshot is not None:
        yield f"recovery points and empty topics: the snapshot of run {listing.unreadable_snapshot} cannot be read"
    for kind in ProofKind:
        mine = [proof for proof in facts.proofs if proof.kind is kind]
        first = min((proof.finished_at_ms for proof in mine), default=0)
        if len(mine) >= PROOFS_KEPT and (period.since_ms is None or first > period.since_ms):
            yield f"older proofs of kind {kind}: an archive keeps the newest {PROOFS_KEPT}"
    if period.since_ms is None or (facts.runs and period.since_ms < facts.runs[0].finished_at):
        yield "runs that were thinned out (prune --keep…): only those that are left are told of"
    yield "restores into clusters, and who has read the archive: it does not record them"
    yield "whether the store locks, replicates or encrypts objects: ask the store"
    yield "copies that were not made by 'maxbrod copy', and whether copies are still what they were"
    yield "backups that found nothing new, and those that could not begin: they leave no run"
    if facts.catalog_signature is not None and facts.catalog_signature.signed:
        yield "whether the signatures of the catalog hold: 'maxbrod check --signature' proves it"
    elif facts.catalog_signature is not None:
        yield "whether somebody with access to the storage has changed the catalog: it is not signed"
    for path in facts.unreadable:
        yield f"what {path} says: it cannot be read"


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _list(value: Any) -> list[str]:  # noqa: ANN401 - JSON of anybody
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

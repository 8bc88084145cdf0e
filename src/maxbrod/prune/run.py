"""Prunes an archive: decides by the policy, and with `apply` takes away what goes.

Our own archives lose rows of the catalog first. Their objects stay for a grace period, in which `undo` brings all of it
back; then `gc` deletes them. Archives in other layouts have no catalog: their own metadata changes first, and their
objects are deleted right after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.archive import Archive
from maxbrod.archive.holds import HOLD_COLUMNS, Hold, Holds, active_holds
from maxbrod.archive.runs import ending_of
from maxbrod.archive.selection import select_names
from maxbrod.archive.snapshots import UNREADABLE, Moment, find_moment, read_snapshot
from maxbrod.archive.undo import SLACK_MS, UNDOES, Taking, take, undoable
from maxbrod.archive.upkeep import NO_ROWS, Clocks, read_clocks
from maxbrod.batch.columns import number_column
from maxbrod.catalog.commits import absent_rows
from maxbrod.catalog.replaced import Revisions, places_of
from maxbrod.catalog.rows import Run, time_of
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.config import Config
from maxbrod.errors import UsageError
from maxbrod.layouts.foreign import ForeignSegment, Layout
from maxbrod.layouts.registry import layout_of, prune_of
from maxbrod.model import PartitionId, TimestampType
from maxbrod.option_values import parse_duration_s
from maxbrod.prune.options import PruneOptions
from maxbrod.prune.plan import PLAN_COLUMNS, FreedObjects, JudgedRows, Oversize, SegmentPolicy, TopicFacts
from maxbrod.prune.report import Item, PruneReport, items_of, totals_of
from maxbrod.prune.runs import PERIODS, RunDecision, RunPolicy, RunToJudge, thin_runs
from maxbrod.restore.state import others_interrupted
from maxbrod.storage.interface import HeldObject, Storage
from maxbrod.storage.stores import open_storage
from maxbrod.work.held import find_held
from maxbrod.work.work import Work

GRACE_S: Final = 7 * 24 * 3600
_NOTHING_CARRIED: Final = "needed for lost topics until a new backup carries them on"

_COLUMNS: Final = ("timestamp_ms", "timestamp_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    segments: SegmentPolicy
    runs: RunPolicy
    topics: tuple[str, ...] = ()
    grace_s: int = GRACE_S

    @property
    def given(self) -> bool:
        return self.segments.given or self.runs.given


def request_of(options: PruneOptions, now_ms: int) -> PruneRequest:
    """`now_ms` is the time up to which ages count."""

    def before(age: str | None) -> int | None:
        return None if age is None else now_ms - round(parse_duration_s(age) * 1000)

    return PruneRequest(
        segments=SegmentPolicy(
            before_ms=before(options.older_than),
            topic_bytes_max=options.topic_bytes,
            archive_bytes_max=options.archive_bytes,
            as_source_at_ms=now_ms if options.as_source else None,
            lost_before_ms=before(options.deleted_before),
            compacted_too=options.compacted_too,
        ),
        runs=RunPolicy(
            last=options.keep_last,
            within_s=options.keep_within,
            **{period: getattr(options, f"keep_{period}") for period in PERIODS},
        ),
        topics=options.topics,
        grace_s=parse_duration_s(options.grace),
    )


@dataclass(slots=True)
class _Plan:
    """Decisions, added up portion by portion. Rows are kept only to be taken."""

    runs: list[RunDecision]
    holds: tuple[Hold, ...] = ()
    freed: FreedObjects | None = None
    """None: no rule takes rows."""
    items: list[Item] = field(default_factory=list)
    replaced_items: list[Item] = field(default_factory=list)
    pruned: list[pa.Table] = field(default_factory=list)
    dropped: list[pa.Table] = field(default_factory=list)

    def add(self, judged: JudgedRows) -> None:
        for item in items_of(judged, [str(hold) for hold in self.holds]):
            (self.replaced_items if item.replaced else self.items).append(item)
        if self.freed is not None:
            self.freed.add(judged)

    def take(self, going: pa.Table, unreachable: pa.Table, markers: pa.Table) -> None:
        """Take these rows. What no run can reach goes as a whole; its highest revision leaves a gap behind."""
        self.pruned += [absent_rows(going, unreachable), markers.filter(pc.is_valid(markers["path"]))]
        self.dropped.append(absent_rows(unreachable, markers))


def prune_archive(
    archive: Archive,
    request: PruneRequest,
    *,
    work: Work | None = None,
    apply: bool = False,
    clocks: Clocks | None = None,
) -> PruneReport:
    """Find what goes, and with `apply` take it away. Without `apply` nothing is changed.

    `clocks` are those by which the request was made. RefusedError: the clocks contradict each other. StoppedError:
    `work` was stopped, and nothing is changed.
    """
    work = work or Work(Config())
    if not request.given:
        raise UsageError(
            "nothing says what to prune", hint="give an age, such as --older-than 90d, or another limit: see --help"
        )
    clocks = read_clocks(archive, ask_store=apply) if clocks is None else clocks
    if archive.survey is not None:
        work.tell("planning")
        return _prune_foreign(archive, request, clocks, apply=apply)
    if not apply:
        with work.looking("planning"):
            return _report(archive, _plan(archive, request, clocks, taken=False), clocks, applied=False)
    plans: list[_Plan] = []

    def taking() -> Taking | None:
        with work.looking("planning"):
            plans[:] = [_plan(archive, request, clocks, taken=True)]
            found = _taking(archive, plans[0])
        work.tell("committing")
        return found

    taken = take(archive, taking, clocks, grace_s=request.grace_s)
    held = find_held(archive.storage, archive.url, archive.options)
    report = replace(_report(archive, plans[0], clocks, applied=True), held_objects=held)
    return report if taken is None else replace(report, run_id=taken.run_id, undo_until_ms=taken.undo_until_ms)


def _plan(archive: Archive, request: PruneRequest, clocks: Clocks, *, taken: bool) -> _Plan:
    """Decide about one portion of the rows after the other. With `taken`, keep the rows that go."""
    runs = archive.catalog.runs()
    moment = find_moment(archive.storage, runs, None)
    holds = _holds(archive)
    decisions = thin_runs(_run_facts(archive, runs, moment, holds, clocks), request.runs)
    reach = _reach(archive, runs, decisions) if taken and request.runs.given else None
    policy = request.segments
    selected = _selected(archive, moment, request.topics)
    judge = partial(JudgedRows, policy=policy, topics=_topic_facts(runs, moment), selected=selected)
    # It has a value for each partition, and is not needed any more.
    del moment
    columns = tuple(dict.fromkeys([*PLAN_COLUMNS, *(HOLD_COLUMNS if holds.active else ())]))
    sizes = Oversize(policy) if policy.sized else None
    if sizes is not None:
        for live, replaced in archive.catalog.portions_with_replaced(columns):
            data, dead, held = _with_holders(live, replaced, holds)
            sizes.add(judge(data, dead, holders=held))
    plan = _Plan(decisions, holds.active, FreedObjects() if policy.given else None)
    # Rows that are taken are remembered whole.
    for live, replaced in archive.catalog.portions_with_replaced(SCHEMA.names if taken else columns):
        data, dead, held = _with_holders(live, replaced, holds)
        judged = judge(data, dead, holders=held)
        judged.finish(sizes)
        plan.add(judged)
        if taken:
            unreachable = NO_ROWS
            if reach is not None:
                # Rows of kind replaced that no query as of a run that stays can return.
                gone = [number <= reach.get(place, 0) for place, number in _revisions(replaced)]
                unreachable = replaced.filter(pa.array(gone, pa.bool_()))
            if holds.active and unreachable.num_rows:
                unreachable = unreachable.filter(pa.array(holds.holders(unreachable) < 0))
            plan.take(judged.going, unreachable, _markers(unreachable, replaced))
    return plan


def _with_holders(live: pa.Table, replaced: pa.Table, holds: Holds) -> tuple[pa.Table, pa.Table, Any]:
    """The rows of data, live and of kind replaced, and which hold each has: None without any hold."""
    live = live.filter(pc.equal(live["kind"], Kind.DATA))
    replaced = replaced.filter(pc.is_valid(replaced["path"]))
    held = np.concatenate([holds.holders(live), holds.holders(replaced)]) if holds.active else None
    return live, replaced, held


def _holds(archive: Archive) -> Holds:
    """The holds, and unfinished restores, which hold what they read: a resumed one would miss the records."""
    holds = active_holds(archive)
    restores = [
        Hold(
            id=plan.restore_id,
            at_ms=plan.planned_at_ms,
            who="maxbrod restore",
            why="it is not finished, and reads this topic; resume it, or delete its folder in restores/",
            topics=tuple(sorted({partition.source.topic for topic in plan.topics for partition in topic.partitions})),
        )
        for plan in others_interrupted(archive.storage, "")
    ]
    return replace(holds, active=(*holds.active, *(restore for restore in restores if restore.topics)))


def _selected(archive: Archive, moment: Moment, patterns: Sequence[str]) -> set[str] | None:
    """The topic ids that the patterns name; None: all."""
    if not patterns:
        return None
    named = archive.catalog.topics().to_pylist()
    names = {} if moment.snapshot is None else dict(moment.snapshot.topics)
    names |= {row["topic_id"]: row["topic"] for row in named}
    chosen = select_names(set(names.values()), patterns)
    return {topic_id for topic_id, name in names.items() if name in chosen}


def _topic_facts(runs: Sequence[Run], moment: Moment) -> dict[str, TopicFacts]:
    if moment.cluster is None:
        return {}
    at = {run.run_id: run.finished_at for run in runs}
    found: dict[str, TopicFacts] = {}
    for topic in moment.cluster.topics:
        own = {name: value for name, value in (topic.configs or {}).items() if value is not None}
        effective = None if topic.effective is None else {**topic.effective, **own}
        lost = moment.lost.get(topic.topic_id)
        found[topic.topic_id] = TopicFacts(
            cleanup_policy=None if effective is None else effective.get("cleanup.policy", "delete"),
            retention_ms=None if effective is None else _number(effective.get("retention.ms")),
            retention_bytes=None if effective is None else _number(effective.get("retention.bytes")),
            known=effective is not None and "retention.ms" in effective,
            lost_at_ms=None if lost is None else at.get(lost, time_of(lost)),
        )
    return found


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _run_facts(archive: Archive, runs: Sequence[Run], moment: Moment, holds: Holds, clocks: Clocks) -> list[RunToJudge]:
    undo = {prune_run.run_id for prune_run in undoable(archive.storage, runs, clocks, slack_ms=SLACK_MS)}
    restoring = {plan.archive.run_id for plan in others_interrupted(archive.storage, "")}
    # Snapshots of older releases carry nothing on: then those before are still needed for what the cluster has lost.
    carried = moment.snapshot is not None and moment.snapshot.carried is not None
    found = []
    for run in runs:
        point = run.snapshot is not None
        needed = None
        if run.run_id in holds.runs:
            needed = next(str(hold) for hold in holds.active if hold.run_id == run.run_id)
        elif run.run_id in undo or (
            run.statistics.get(UNDOES) is not None and run.finished_at > clocks.earliest_ms - GRACE_S * 1000
        ):
            needed = "it can be undone" if run.run_id in undo else "it undid a prune"
        elif run.run_id in restoring:
            needed = "an unfinished restore reads its snapshot"
        elif point and not carried:
            needed = _NOTHING_CARRIED
        complete = ending_of(run) in {None, 0}
        found.append(
            RunToJudge(run_id=run.run_id, at_ms=run.finished_at, point=point, complete=complete, needed=needed)
        )
    return found


def _reach(archive: Archive, runs: Sequence[Run], decisions: Sequence[RunDecision]) -> Revisions | None:
    """The revisions that the oldest point in time which stays knows: none reaches further back, because they only rise.

    None: unknown, so that everything may be needed.
    """
    kept = {decision.run_id for decision in decisions if decision.keep}
    oldest = next((run for run in runs if run.snapshot is not None and run.run_id in kept), None)
    if oldest is None:
        return None
    try:
        return read_snapshot(archive.storage, oldest).revisions
    except UNREADABLE:
        return None


def _revisions(dead: pa.Table) -> list[tuple[PartitionId, int]]:
    details = pc.extract_regex(dead["details"], r'"revision": (?P<revision>[0-9]{1,18})')
    numbers = pc.struct_field(details, "revision").cast(pa.int64()).to_pylist()
    return list(zip(places_of(dead), numbers, strict=True))


def _markers(unreachable: pa.Table, dead: pa.Table) -> pa.Table:
    """One row of each partition that would lose its highest revision: the next one must not get its number again."""
    highest: dict[PartitionId, int] = {}
    for place, number in _revisions(dead):
        highest[place] = max(highest.get(place, 0), number)
    left = {place for place, number in _revisions(absent_rows(dead, unreachable)) if number == highest[place]}
    chosen: dict[PartitionId, int] = {}
    for row, (place, number) in enumerate(_revisions(unreachable)):
        if number == highest[place] and place not in left:
            chosen.setdefault(place, row)
    return unreachable.take(pa.array(sorted(chosen.values()), pa.int64()))


def _taking(archive: Archive, plan: _Plan) -> Taking | None:
    ids = pa.array([run.run_id for run in plan.runs if not run.keep], pa.string())
    runs = archive.catalog.run_rows()
    runs = runs.filter(pc.is_in(runs["run_id"], value_set=ids))
    pruned, dropped = (pa.concat_tables([NO_ROWS, *rows]) for rows in (plan.pruned, plan.dropped))
    if not (pruned.num_rows or dropped.num_rows or len(ids)):
        return None
    return Taking(
        pruned=pruned,
        dropped=pa.concat_tables([dropped, runs]),
        statistics={
            "command": "prune",
            "segments": pruned.num_rows,
            "records": pc.sum(pruned["records"]).as_py() or 0,
            "bytes": pc.sum(pruned["bytes"]).as_py() or 0,
            "runs": runs.num_rows,
            "topics": len(pc.unique(pruned["topic_id"])),
            "exit_code": 0,
        },
        still_valid=lambda: _holds(archive).active == plan.holds,
    )


def _report(archive: Archive, plan: _Plan, clocks: Clocks, *, applied: bool) -> PruneReport:
    items = (*plan.items, *plan.replaced_items)
    objects, objects_bytes = (0, 0) if plan.freed is None else plan.freed.total()
    return PruneReport(
        archive=archive.url,
        layout=archive.layout,
        items=items,
        runs=tuple(plan.runs),
        going=totals_of(items, keep=False),
        kept=totals_of(items, keep=True),
        objects=objects,
        objects_bytes=objects_bytes,
        applied=applied,
        ages_until_ms=clocks.earliest_ms,
        idle_ms=clocks.idle_ms,
    )


def _prune_foreign(archive: Archive, request: PruneRequest, clocks: Clocks, *, apply: bool) -> PruneReport:
    """By its own metadata: without runs, and without a way back."""
    survey = archive.surveyed
    if request.runs.given:
        raise UsageError(
            f"the layout {survey.layout} records no runs", hint="prune it by age, by size or as its source does"
        )
    runs = archive.catalog.runs()
    moment = find_moment(archive.storage, runs, None)
    live = with_times(archive, archive.catalog.rows(), request.segments)
    live = live.filter(pc.equal(live["kind"], Kind.DATA))
    holds = _holds(archive)
    facts = {
        # The layouts say nothing of a topic's policy unless it was set: then it is Kafka's default.
        topic_id: topic_facts
        if topic_facts.cleanup_policy is not None
        else replace(topic_facts, cleanup_policy="delete")
        for topic_id, topic_facts in {
            **dict.fromkeys(pc.unique(live["topic_id"]).to_pylist(), TopicFacts()),
            **_topic_facts(runs, moment),
        }.items()
    }
    selected = _selected(archive, moment, request.topics)
    held = holds.holders(live) if holds.active else None
    judged = JudgedRows(live, live.slice(0, 0), request.segments, facts, selected=selected, holders=held)
    sizes = Oversize(request.segments) if request.segments.sized else None
    if sizes is not None:
        sizes.add(judged)
    judged.finish(sizes, in_order=True)
    going = set(judged.going["path"].to_pylist())
    # An object of which one part stays, because others overlap it, stays.
    going -= set(judged.kept["path"].to_pylist())
    delete = prune_of(survey.layout)
    kept: tuple[HeldObject, ...] = ()
    if apply:
        # With what an earlier prune that was killed has left.
        storage = open_storage(archive.url, archive.options)
        delete(storage, survey, going)
        kept = find_held(storage, archive.url, archive.options)
    plan = _Plan([], holds.active, FreedObjects())
    plan.add(judged)
    return replace(_report(archive, plan, clocks, applied=apply), held_objects=kept)


def with_times(archive: Archive, rows: pa.Table, policy: SegmentPolicy) -> pa.Table:
    """The rows with the time of each segment's newest record, read from its records if the metadata has none.

    A record without a timestamp is as old as its object. With a rule by age alone, segments behind the first young one
    of a partition are not read: they stay in any case.
    """
    unknown = pc.and_(pc.equal(rows["kind"], Kind.DATA), pc.is_null(rows["max_timestamp"]))
    if archive.is_native or not pc.any(unknown).as_py():
        return rows
    survey = archive.surveyed
    storage, layout = open_storage(archive.url, archive.options), layout_of(survey.layout)
    modified = {info.path: info.modified_ms for info in storage.list()}
    segments = {(segment.path, segment.base_offset): segment for segment in survey.segments}
    by_age_alone = policy.topic_bytes_max is None and policy.archive_bytes_max is None
    limit = policy.before_ms if by_age_alone and policy.as_source_at_ms is None else None
    known = rows["max_timestamp"].to_pylist()
    young: set[tuple[str, int]] = set()
    columns = (rows[name].to_pylist() for name in ("topic_id", "partition", "path", "base_offset"))
    for number, (topic_id, partition, path, base) in enumerate(zip(*columns, strict=True)):
        if path is None:
            continue
        where = (topic_id, partition)
        if known[number] is None and where not in young:
            known[number] = _newest_ms(storage, layout, segments[path, base], modified.get(path, 0))
        elif known[number] is None:
            known[number] = np.iinfo(np.int64).max
        if limit is not None and known[number] >= limit:
            young.add(where)
    place = rows.schema.get_field_index("max_timestamp")
    return rows.set_column(place, rows.schema.field(place), pa.array(known, pa.int64()))


def _newest_ms(storage: Storage, layout: Layout, segment: ForeignSegment, modified_ms: int) -> int:
    newest: int | None = None
    for batch in layout.read(storage, segment, columns=_COLUMNS):
        timestamp = number_column(batch.column("timestamp_ms"))
        without = (number_column(batch.column("timestamp_type")) == TimestampType.NONE) | (timestamp == -1)
        if without.any():
            newest = max(newest or 0, modified_ms)
        if not without.all():
            highest = int(timestamp[~without].max())
            newest = highest if newest is None else max(newest, highest)
    return modified_ms if newest is None else newest

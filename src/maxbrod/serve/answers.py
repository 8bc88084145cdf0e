"""Finds out what a page shows: asks an edition, which asks the archive once, and makes the page's values of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from maxbrod.archive.holds import Hold, read_holds
from maxbrod.archive.knowledge import knowledge_of
from maxbrod.archive.runs import show_run
from maxbrod.archive.selection import parse_time_ms, select_topics
from maxbrod.archive.snapshots import UNREADABLE, read_snapshot
from maxbrod.archive.upkeep import read_clocks
from maxbrod.config import complaints, lay_over
from maxbrod.errors import MaxbrodError, UsageError
from maxbrod.inspect.records import RecordPage, find_offset, read_page
from maxbrod.inspect.status import price_of
from maxbrod.inspect.topic import TopicDetails, show_topic
from maxbrod.model import PartitionId, now_ms
from maxbrod.prune.options import PruneOptions
from maxbrod.prune.report import PruneReport, totals_of
from maxbrod.prune.run import prune_archive
from maxbrod.prune.run import request_of as prune_request_of
from maxbrod.replicate.heartbeat import STALE_MS, read_heartbeats
from maxbrod.replicate.options import ReplicateOptions
from maxbrod.replicate.status import LinkStatus, egress_instances, link_status
from maxbrod.restore.archived import plan_into_empty
from maxbrod.restore.functions import request_of
from maxbrod.restore.options import RestoreOptions
from maxbrod.restore.run import Restore
from maxbrod.restore.state import others_interrupted
from maxbrod.schedule.state import read_state
from maxbrod.serve.pages import records as record_pages
from maxbrod.serve.pages.charts import TIME_COLUMNS, OverTime, over_time
from maxbrod.serve.pages.command_lines import prune_words, restore_words
from maxbrod.serve.pages.jobs import JobsView, jobs_view
from maxbrod.serve.pages.proofs import (
    DrillsView,
    GrowthView,
    ReplicationView,
    drills_view,
    growth_view,
    replication_view,
)
from maxbrod.serve.pages.restore import PlannedRestore, RestoreView, form_of, planned, points_in_time
from maxbrod.serve.pages.retention import (
    LATER_DAYS,
    RetentionView,
    empty_retention,
    policy_of,
    retention_view,
)
from maxbrod.serve.pages.runs import RunView, run_view
from maxbrod.serve.pages.topic import ConfigSeen, HistoryView, TopicPage, history_view, topic_view
from maxbrod.serve.pages.topics import TopicLine, TopicsView, topic_lines, topics_view
from maxbrod.serve.pages.wall import WallRow, wall_row
from maxbrod.work.work import Work

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.serve.schemas import ArchivedSchemas
    from maxbrod.serve.shelf import Edition, Volume

Parameters = Mapping[str, Sequence[str]]

_DAY_MS: Final = 86_400_000
_HISTORY_RUNS: Final = 100
_HISTORY_S: Final = 10.0
"""A snapshot of a large cluster takes a second to read."""
_SIMULATED_SEGMENTS: Final = 200_000
"""Beyond this, only the present is simulated: the rows are read once for each time."""
_PLANNED_SEGMENTS: Final = 1_000_000
_LINK_S: Final = 30


def one_of(parameters: Parameters, name: str, default: str = "") -> str:
    """The first value of a parameter."""
    return next(iter(parameters.get(name, ())), default)


def number_of(parameters: Parameters, name: str, default: int = 0) -> int:
    """A parameter that is a number. UsageError: it is none."""
    text = one_of(parameters, name)
    if not text:
        return default
    if not text.isdecimal() or len(text) > 19:
        raise UsageError(f"{name} is not a number: {text[:40]!r}")
    return int(text)


def wall_row_of(volume: Volume) -> WallRow:
    judged = volume.judged(now_ms())
    edition = volume.edition
    # Not `edition.runs`, which a wall must not wait for.
    runs = edition.runs if edition is not None and edition.facts is not None else ()
    return wall_row(
        volume.slug,
        volume.url,
        promises=judged.promises,
        facts=judged.facts,
        runs=runs,
        checked_at_ms=judged.checked_at_ms,
        reading=edition is None,
    )


def topics_of(volume: Volume, edition: Edition, parameters: Parameters) -> TopicsView:
    def lines() -> list[TopicLine]:
        return topic_lines(volume.slug, edition.listing, edition.lags)

    return topics_view(
        edition.keep("topic lines", lines),
        words=one_of(parameters, "q"),
        sort=one_of(parameters, "sort", "name"),
        first=number_of(parameters, "from"),
        every=bool(one_of(parameters, "all")),
    )


def topic_of(volume: Volume, edition: Edition, parameters: Parameters) -> TopicPage:
    name = one_of(parameters, "name")
    details, time = _topic(edition, name, one_of(parameters, "id") or None)
    same = [summary for summary in edition.listing.topics if summary.topic == name]
    return topic_view(volume.slug, details, time, same, first=number_of(parameters, "from"))


def _topic(edition: Edition, name: str, topic_id: str | None) -> tuple[TopicDetails, OverTime | None]:
    def find() -> tuple[TopicDetails, OverTime | None]:
        archive = edition.archive
        details = show_topic(archive, name, topic_id=topic_id, look=edition.look).topics[0]
        rows = archive.catalog.rows(topic_id=details.topic_id, columns=TIME_COLUMNS)
        return details, over_time(rows)

    return edition.keep(("topic", name, topic_id), find)


def history_of(edition: Edition, parameters: Parameters) -> HistoryView:
    """The configuration of a topic in the snapshots of the last runs, as far as there is time to read them."""
    name, topic_id = one_of(parameters, "name"), one_of(parameters, "id") or None
    details, _ = _topic(edition, name, topic_id)

    def find() -> HistoryView:
        runs = [run for run in edition.look.runs if run.snapshot is not None]
        seen: list[ConfigSeen] = []
        unreadable, until_s = 0, time.monotonic() + _HISTORY_S
        for run in reversed(runs[-_HISTORY_RUNS:]):
            if time.monotonic() > until_s:
                break
            try:
                cluster = knowledge_of(read_snapshot(edition.archive.storage, run)).cluster
            except UNREADABLE:
                unreadable += 1
                continue
            configs = next((topic.configs for topic in cluster.topics if topic.topic_id == details.topic_id), None)
            seen.append(ConfigSeen(run_id=run.run_id, at_ms=run.finished_at, configs=configs))
        left = len(runs) - len(seen) - unreadable
        return history_view(details.topic, list(reversed(seen)), left=left, unreadable=unreadable)

    return edition.keep(("history", details.topic_id), find)


def records_of(volume: Volume, edition: Edition, parameters: Parameters) -> tuple[record_pages.RecordsView, RecordPage]:
    name, topic_id = one_of(parameters, "name"), one_of(parameters, "id") or None
    details, _ = _topic(edition, name, topic_id)
    number = number_of(parameters, "partition", details.partitions[0].partition if details.partitions else 0)
    extent = next((extent for extent in details.partitions if extent.partition == number), None)
    if extent is None:
        raise UsageError(f"the topic {name!r} has no partition {number}")
    place = PartitionId(topic_id=details.topic_id, partition=number)
    count = min(max(number_of(parameters, "count", record_pages.COUNTS[0]), 1), record_pages.COUNTS[-1])
    word = one_of(parameters, "time")
    time_ms = parse_time_ms(word) if word else None
    first = number_of(parameters, "offset", extent.first_offset)
    if time_ms is not None:
        key = ("offset", place, time_ms)
        found = edition.keep(key, lambda: find_offset(edition.archive, place, time_ms))
        first = extent.end_offset if found is None else found

    def read() -> RecordPage:
        return read_page(edition.archive, place, first, count=count, bytes_max=record_pages.BYTES_MAX)

    page = edition.keep(("records", place, first, count), read, large=True)
    schemas = edition.keep("schemas", lambda: _schemas(edition))
    decoded = edition.keep(("decoded", place, first, count), lambda: schemas.decode(name, page.records), large=True)
    view = record_pages.records_view(
        volume.slug,
        volume.url,
        page,
        decoded,
        topic=name,
        topic_id=topic_id,
        partition=number,
        partitions=[extent.partition for extent in details.partitions],
        archived=(extent.first_offset, extent.end_offset),
        first=first,
        count=count,
        time_ms=time_ms,
    )
    return view, page


def _schemas(edition: Edition) -> ArchivedSchemas:
    # Loads numba, which takes 100 MB and a second: not before somebody looks at records.
    from maxbrod.serve.schemas import ArchivedSchemas  # noqa: PLC0415

    return ArchivedSchemas(edition.archive, edition.listing)


def run_of(volume: Volume, edition: Edition, parameters: Parameters) -> RunView:
    run_id = one_of(parameters, "id")
    report = edition.keep(("run", run_id), lambda: show_run(edition.archive, run_id, edition.lacking))
    return run_view(volume.slug, report)


def jobs_of(edition: Edition) -> JobsView | None:
    """None: no scheduler ever looked after the archive. Its state changes without a commit, so it is read each time."""
    state = read_state(edition.archive.storage)
    return None if state is None else jobs_view(state, now_ms())


def restore_of(volume: Volume, edition: Edition, config: Config, parameters: Parameters) -> RestoreView:
    """The form, its command, and its plan if it was sent.

    No cluster is asked but the one that the dashboard was started with: a browser must not choose what it connects to.
    """
    given = form_of(parameters)
    bootstrap = one_of(parameters, "bootstrap").strip()
    asks = bool(one_of(parameters, "ask")) and config.kafka is not None
    plan, problem = None, None
    if given or "plan" in parameters:
        try:
            options = _laid_over(RestoreOptions(), given)
            key = ("plan", repr(sorted(given.items())), asks, _minute() if asks else 0)
            plan = edition.keep(key, lambda: _plan(volume, edition, config, options, asks=asks))
        except MaxbrodError as error:
            problem = error
    target = bootstrap or (config.kafka.bootstrap if config.kafka is not None else "")
    place = ("--archive", volume.url)
    return RestoreView(
        given=given,
        bootstrap=bootstrap,
        command=restore_words(given, place=place, bootstrap=target),
        dry_run=restore_words({**given, "dry_run": True}, place=place, bootstrap=target),
        plan=plan,
        error=None if problem is None else problem.message,
        hint=None if problem is None else problem.hint,
        runs=points_in_time(edition.runs),
        cluster=config.kafka.bootstrap if asks and config.kafka is not None else None,
        can_ask=config.kafka is not None,
    )


def _minute() -> int:
    return now_ms() // 60_000


def _laid_over(options: Any, given: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any declaration of options
    try:
        return lay_over(options, given)
    except ValidationError as error:
        raise UsageError(complaints(error, type(options))) from None


def _plan(volume: Volume, edition: Edition, config: Config, options: RestoreOptions, *, asks: bool) -> PlannedRestore:
    request = request_of(options)
    _demand_bounds(edition, options)
    if not asks:
        return planned(plan_into_empty(edition.archive, request))
    with Work(config.model_copy(update={"archive": volume.url})) as work, Restore(work, request) as restore:
        return planned(restore.plan())


def _demand_bounds(edition: Edition, options: RestoreOptions) -> None:
    """UsageError: a plan of so much, with all that is lost of it, may need more memory than a dashboard should."""
    topics = edition.listing.topics
    names = dict.fromkeys((topic.topic for topic in topics), False)
    chosen = set(select_topics(names, options.topics, options.exclude, internal=True).chosen)
    segments = sum(topic.segments for topic in topics if topic.topic in chosen)
    if segments > _PLANNED_SEGMENTS:
        raise UsageError(
            f"these topics have {segments:,} segments, and a plan of more than {_PLANNED_SEGMENTS:,} is not made here",
            hint="choose fewer topics; or run the command as a dry run",
        )


def retention_of(volume: Volume, edition: Edition, parameters: Parameters) -> RetentionView:
    given = policy_of(parameters)
    if not given:
        return empty_retention(given)
    try:
        options = _laid_over(PruneOptions(), given)
        key = ("prune", repr(sorted(given.items())))
        report, later = edition.keep(key, lambda: _simulate(edition, options), large=True)
    except MaxbrodError as error:
        return empty_retention(given, error.message, error.hint)
    return retention_view(given, prune_words(given, place=("--archive", volume.url)), report, later)


def _simulate(edition: Edition, options: PruneOptions) -> tuple[PruneReport, list[tuple[int, int, int]]]:
    """The report of a prune now, and the kept and going bytes of one at each of `LATER_DAYS`."""
    clocks = read_clocks(edition.archive, ask_store=False)
    first: PruneReport | None = None
    later: list[tuple[int, int, int]] = []
    for days in LATER_DAYS:
        ahead = days * _DAY_MS
        backup_ms = None if clocks.backup_ms is None else clocks.backup_ms + ahead
        then = replace(clocks, own_ms=clocks.own_ms + ahead, backup_ms=backup_ms)
        request = prune_request_of(options, then.earliest_ms)
        report = prune_archive(edition.archive, request, apply=False, clocks=then)
        kept, going = (totals_of(report.items, keep=keep).bytes for keep in (True, False))
        later.append((days, kept, going))
        first = first or report
        if first.kept.segments + first.going.segments > _SIMULATED_SEGMENTS:
            break
    if first is None:
        raise UsageError("nothing was simulated")
    return first, later


def drills_of(volume: Volume, edition: Edition) -> DrillsView:
    facts = volume.judged(now_ms()).facts
    return drills_view(edition.proofs, 0 if facts is None else facts.records)


def growth_of(volume: Volume, edition: Edition, config: Config) -> GrowthView | None:
    """None: the archive has not been checked yet."""
    facts = volume.judged(now_ms()).facts
    return None if facts is None else growth_view(facts, edition.runs, price_of(config.status))


def replication_of(volume: Volume, edition: Edition, config: Config) -> ReplicationView:
    storage, snapshot = edition.archive.storage, edition.look.moment.snapshot
    link, error = None, None
    # The link is of the archive that the file names: its section says which topics are mirrored, and where.
    if config.kafka is not None and config.replicate != ReplicateOptions() and config.archive == volume.url:
        try:
            link = edition.keep(("link", now_ms() // (_LINK_S * 1000)), lambda: _link(config))
        except MaxbrodError as found:
            error = found.message
    return replication_view(
        egress_instances(storage, now_ms()),
        read_heartbeats(storage),
        {} if snapshot is None else snapshot.ends,
        {} if snapshot is None else snapshot.topics,
        now_ms=now_ms(),
        stale_ms=STALE_MS,
        link=link,
        error=error,
    )


def _link(config: Config) -> LinkStatus:
    return link_status(config)


def holds_of(edition: Edition) -> tuple[list[Hold], list[tuple[str, int, tuple[str, ...]]]]:
    """Holds, and restores that have not finished: id, time and topics. Nothing of both may be pruned."""
    restores: list[tuple[str, int, tuple[str, ...]]] = []
    with suppress(*UNREADABLE):
        restores = [
            (
                plan.restore_id,
                plan.planned_at_ms,
                tuple(sorted({topic.target.source_topic for topic in plan.topics})),
            )
            for plan in others_interrupted(edition.archive.storage, "")
        ]
    return read_holds(edition.archive.storage), restores

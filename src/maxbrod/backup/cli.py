"""`maxbrod backup`: from a live cluster into an archive, once or continuously, and its report for people.

The report is a table of topics, the notices, and the verdict. Its length is bounded, however many partitions a cluster
has; `--json` has everything.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from maxbrod.backup.options import BackupOptions
from maxbrod.cli.commands import Call, command
from maxbrod.cli.log import showing_log
from maxbrod.cli.metrics import exporting, report_figures
from maxbrod.cli.output import err, out, print_error, print_json_line, print_line, table
from maxbrod.cli.progress import progress_bar
from maxbrod.cli.signals import stopping_by_signals
from maxbrod.cli.verbs import at_work, end, load
from maxbrod.errors import EXIT_DONE, UsageError
from maxbrod.notices import Notice
from maxbrod.options import PLACE, ClusterOptions, ImmutableOptions, JsonOption, QuietOption, SparkOptions
from maxbrod.text import counted, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.backup.follow import Interval
    from maxbrod.backup.report import BackupReport, CapturedSchemas, TopicReport
    from maxbrod.config import Config


@command(
    "backup",
    BackupOptions,
    before=(ClusterOptions, *PLACE, ImmutableOptions),
    after=(SparkOptions, QuietOption, JsonOption),
)
def backup(call: Call[BackupOptions]) -> None:
    """Back up topics of a cluster into an archive.

    The first run archives everything that the cluster has. Each later run archives what has been written since. A run
    that was killed loses nothing: run it again.

    A run is complete if every offset is archived, or explained: the archive has no record at it and says why, such as
    compaction or retention. The recovery point is the time up to which the archive has everything that the cluster had.
    The layout is how an archive stores records: maxbrod's own, or that of another tool. A generation is one reading of
    a compacted topic from its start. 'maxbrod help tutorial' shows a first backup and restore.

    For example:

      maxbrod backup --bootstrap broker1:9092 --archive /backups/kafka

      maxbrod backup --bootstrap broker1:9092 -a s3://backups/kafka --topic 'a-*'

      maxbrod backup -c maxbrod.yaml --command-config client.properties

      maxbrod backup --bootstrap broker1:9092 -a /backups/old --layout kbak

      maxbrod backup --from-logdir /disks/broker1 --from-logdir /disks/broker2 -a /backups/kafka

      maxbrod backup -c maxbrod.yaml --follow --every 60s --metrics-port 9464
    """
    if call.options.from_logdir:
        if "bootstrap" in call.given:
            raise UsageError("--from-logdir is for a lost cluster, --bootstrap for a running one")
        if call.options.schema_registry is not None:
            raise UsageError("a schema registry is captured with a running cluster", hint="leave out --schema-registry")
        _back_up_logdirs(call)
    if call.options.uncommitted_tail:
        raise UsageError("--uncommitted-tail needs --from-logdir")
    request = call.config.model_copy(update={"archive": call.archive})
    stop = threading.Event()
    with showing_log(quiet=call.quiet), stopping_by_signals(stop):
        (_follow if call.options.follow else _run_once)(call, request, stop)


def _run_once(call: Call[BackupOptions], request: Config, stop: threading.Event) -> NoReturn:
    with (
        progress_bar(shown=not call.quiet) as on_progress,
        load("backup.follow:open_backup")(request, on_progress=on_progress, stop=stop) as work,
    ):
        # Said once, before anything is written.
        for loss in () if call.silent else work.losses:
            print_line(f"{'lost' if loss.real else 'not kept'} in this layout: {loss.what}")
        report: BackupReport = work.run()
    point = report.recovery_point_ms
    report_figures(
        recovery_point_timestamp_seconds=0 if point is None else point / 1000,
        last_records=report.records,
        last_read_bytes=report.raw_bytes,
        last_stored_bytes=report.bytes,
    )
    end(call, report, print_summary)


def _follow(call: Call[BackupOptions], request: Config, stop: threading.Event) -> NoReturn:
    from maxbrod.backup.metrics import BackupMetrics, problem_of  # noqa: PLC0415 - not for `--help`

    metrics, show = BackupMetrics(), IntervalPrinter(quiet=call.quiet, as_json=call.as_json)
    with (
        exporting(metrics.registry, request.backup, every_s=request.backup.every) as ended,
        progress_bar(shown=not call.quiet) as on_progress,
    ):

        def report(interval: Interval) -> None:
            metrics.observe(interval)
            ended(problem_of(interval))
            show(interval)

        last: Interval = load("backup.follow:follow")(request, stop=stop, on_interval=report, on_progress=on_progress)
    raise typer.Exit(last.exit_code)


def _back_up_logdirs(call: Call[BackupOptions]) -> NoReturn:
    """Back up all directories into one archive. Only records, topics and groups that are on the disks are known."""
    options = call.config.backup
    if call.config.layout not in {None, "kafka"}:
        raise UsageError("log directories are backed up in maxbrod's own layout", hint="convert the archive afterwards")
    if options.follow:
        raise UsageError("--from-logdir is for a lost cluster: --follow does not apply")
    if options.exclude or options.start != "earliest":
        raise UsageError("--from-logdir does not support --exclude and --start", hint="select the topics with --topic")
    if options.min_topics is not None:
        raise UsageError("--from-logdir reads what is on the disks: --min-topics does not apply")
    if options.rate_bytes_per_s is not None:
        raise UsageError("--from-logdir reads no broker: --rate does not apply", hint="omit --rate")
    for directory in options.from_logdir:
        if not directory.is_dir():
            raise UsageError("there is no such directory", object_name=str(directory))
    single = len(options.from_logdir) == 1
    source = str(options.from_logdir[0]) if single else load("storage.composed:joined_url")(options.from_logdir)
    storage = call.config.storage
    conversion = replace(
        load("convert.verb:logdir_options")(source, call.archive, uncommitted_tail=options.uncommitted_tail),
        topics=options.topics,
        codec=options.compression,
        segment_bytes=options.segment_bytes,
    )
    with at_work(call) as work:
        report = load("convert.verb:Conversion")(work, conversion, (storage, storage)).run()
    end(call, report, partial(load("convert.cli:print_report"), done="backed up from log directories"))


TOPICS_SHOWN_MAX: Final = 60
NOTICES_SHOWN_MAX: Final = 10
"""For each kind."""


def print_summary(report: BackupReport, *, quiet: bool = False) -> None:
    """Print everything; `quiet`: only what is wrong, to standard error."""
    if quiet:
        # A schedule that backs nothing up is not to go on without a word.
        print_notices(report, err, grave_only=not report.nothing_selected)
        return
    _print_topics(report)
    print_notices(report, out)
    took_s = max((report.finished_at_ms - report.started_at_ms) / 1000, 0.001)
    print_line(
        f"{counted(report.records, 'record')}, {human_bytes(report.raw_bytes)} read, {human_bytes(report.bytes)} "
        f"stored in {counted(report.objects, 'object')}, "
        f"{took_s:,.1f} s, {human_bytes(report.raw_bytes / took_s)}/s"
    )
    if report.schemas is not None:
        print_line(_schemas_line(report.schemas))
    if report.committed:
        print_line(f"run {report.run_id} in {report.archive}")
    else:
        print_line(f"nothing {'new' if report.complete else 'was stored'}: {report.archive} stays as it is")
    print_line(f"recovery point: {human_time(report.recovery_point_ms) or 'none yet'}")
    out.print(verdict(report), soft_wrap=True)


def _schemas_line(schemas: CapturedSchemas) -> str:
    more = [f"{schemas.deleted} soft-deleted"] if schemas.deleted else []
    more += [f"{schemas.lost} that the registry has lost"] if schemas.lost else []
    return (
        f"schemas: {counted(schemas.versions, 'version')} of {counted(schemas.subjects, 'subject')} in {schemas.url}"
        f"{''.join(f', {words}' for words in more)}{'' if schemas.changed else ', nothing changed'}"
    )


def _print_topics(report: BackupReport) -> None:
    # A topic with partitions that did not answer may have something new.
    changed = [topic for topic in report.topics if topic.records or topic.gaps or topic.waiting != 0]
    quiet = len(report.topics) - len(changed)
    if changed:
        headings = ["topic", ">parts", ">records", ">read", ">stored"]
        headings += ["gaps"] if any(topic.gaps for topic in changed) else []
        headings += [">waiting"] if any(topic.waiting != 0 for topic in changed) else []
        shown = table("", *headings)
        shown.title = None
        for column in shown.columns[:1]:
            column.no_wrap, column.overflow = False, "fold"
        for topic in changed[:TOPICS_SHOWN_MAX]:
            shown.add_row(*_cells(topic, headings))
        out.print(shown)
    if len(changed) > TOPICS_SHOWN_MAX:
        print_line(f"and {counted(len(changed) - TOPICS_SHOWN_MAX, 'topic')} more")
    if quiet:
        print_line(f"{counted(quiet, 'topic')} without anything new")


def _cells(topic: TopicReport, headings: Iterable[str]) -> list[str]:
    cells = {
        "topic": topic.topic,
        ">parts": f"{topic.partitions:,}",
        ">records": f"{topic.records:,}",
        ">read": human_bytes(topic.raw_bytes),
        ">stored": human_bytes(topic.bytes),
        "gaps": ", ".join(f"{reason} {count:,}" for reason, count in sorted(topic.gaps.items())),
        ">waiting": "unknown" if topic.waiting is None else f"{topic.waiting:,}" if topic.waiting else "",
    }
    return [cells[heading] for heading in headings]


def print_notices(report: BackupReport, console: Console, *, grave_only: bool = False) -> None:
    """The most severe notices come last, next to the verdict."""
    shown: Counter[str] = Counter()
    chosen = [notice for notice in report.notices if notice.exit_code or not grave_only]
    for notice in sorted(chosen, key=lambda other: other.exit_code):
        shown[notice.kind] += 1
        if shown[notice.kind] <= NOTICES_SHOWN_MAX:
            print_notice(notice, console)
    for kind, count in shown.items():
        if count > NOTICES_SHOWN_MAX:
            console.print(Text(f"{kind}: {count - NOTICES_SHOWN_MAX:,} more, all of them with --json"), soft_wrap=True)


def print_notice(notice: Notice, console: Console) -> None:
    style = "bold red" if notice.exit_code else "yellow"
    # Text, not markup: a message may contain names with brackets.
    console.print(Text.assemble((f"{notice.kind}: ", style), str(notice)), soft_wrap=True)
    if notice.hint:
        console.print(Text(f"  {notice.hint}", style="dim"), soft_wrap=True)


def verdict(report: BackupReport) -> Text:
    if report.complete and report.nothing_selected:
        return Text.assemble((report.verdict, "bold yellow"), ": no matching topic exists")
    if report.complete:
        text = ": every offset up to the end of this run is archived or explained"
        return Text.assemble((report.verdict, "bold green"), text)
    grave = Counter(notice.kind for notice in report.notices if notice.exit_code)
    kinds = ", ".join(f"{count:,} {kind!r}" if len(grave) > 1 else repr(kind) for kind, count in sorted(grave.items()))
    return Text.assemble((report.verdict, "bold red"), f": {counted(grave.total(), 'problem')} above ({kinds})")


class IntervalPrinter:
    """Prints a line for each interval of `--follow`, and each new notice once. Call it with each one."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self._quiet = quiet
        self._as_json = as_json
        self._printed: set[tuple[object, ...]] = set()

    def __call__(self, interval: Interval) -> None:
        if self._as_json:
            # One line for each interval, so that the reader of a pipe need not wait for the end.
            print_json_line(interval.as_dict())
            return
        if interval.error is not None:
            print_error(interval.error, as_json=False)
        self._print_new_notices(interval)
        if not self._quiet:
            out.print(interval_line(interval), soft_wrap=True)

    def _print_new_notices(self, interval: Interval) -> None:
        notices = () if interval.report is None else interval.report.notices
        all_of_them = not self._quiet or (interval.report is not None and interval.report.nothing_selected)
        for notice in notices:
            if _key(notice) not in self._printed and (notice.exit_code or all_of_them):
                print_notice(notice, err if self._quiet else out)
        # A notice that disappears and comes back is new again.
        if interval.report is not None:
            self._printed = {_key(notice) for notice in notices}


def interval_line(interval: Interval) -> Text:
    when = human_time(interval.finished_at_ms)
    took_s = (interval.finished_at_ms - interval.started_at_ms) / 1000
    report = interval.report
    done = ""
    if report is not None:
        done = f"{counted(report.records, 'record')}, {human_bytes(report.raw_bytes)} in {took_s:,.1f} s; "
    if report is not None and report.of_partitions is not None:
        mine = sum(topic.partitions for topic in report.topics)
        done += f"{mine:,} of {counted(report.of_partitions, 'partition')}; "
    # In offsets and in time, as far as known.
    lag = "unknown" if interval.lag_offsets is None else counted(interval.lag_offsets, "offset")
    if interval.lag_ms is not None:
        lag += f", {interval.lag_ms / 1000:,.0f} s"
    word = f"failed, {interval.failures:,} in a row" if interval.failures else interval.verdict
    return Text.assemble(
        when,
        f"  {done}lag {lag}; recovery point {human_time(interval.recovery_point_ms) or 'none yet'}; ",
        (word, "green" if interval.exit_code == EXIT_DONE else "bold red"),
    )


def _key(notice: Notice) -> tuple[object, ...]:
    """Without the message, which may contain an age."""
    return notice.kind, notice.topic, notice.partition, notice.first_offset, notice.exit_code

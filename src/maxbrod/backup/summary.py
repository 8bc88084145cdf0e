"""The report of a backup for people: a table of topics, the notices, and the verdict.

Its length is bounded, however many partitions a cluster has. `--json` has everything.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from rich.text import Text

from maxbrod.cli.output import err, out, print_error, print_json_line, print_line, table
from maxbrod.errors import EXIT_DONE
from maxbrod.text import counted, human_bytes, human_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console

    from maxbrod.backup.follow import Interval
    from maxbrod.backup.report import BackupReport, TopicReport
    from maxbrod.notices import Notice


TOPICS_SHOWN_MAX: Final = 60
NOTICES_SHOWN_MAX: Final = 10
"""For each kind."""


def print_summary(report: BackupReport) -> None:
    """Print everything; `print_notices` prints only the notices."""
    _print_topics(report)
    print_notices(report, out)
    took_s = max((report.finished_at_ms - report.started_at_ms) / 1000, 0.001)
    print_line(
        f"{counted(report.records, 'record')}, {human_bytes(report.raw_bytes)} read, {human_bytes(report.bytes)} "
        f"stored in {counted(report.objects, 'object')}, "
        f"{took_s:,.1f} s, {human_bytes(report.raw_bytes / took_s)}/s"
    )
    print_line(_committed(report))
    print_line(f"recovery point: {human_time(report.recovery_point_ms) or 'none yet'}")
    out.print(verdict(report), soft_wrap=True)


def _committed(report: BackupReport) -> str:
    if report.committed:
        return f"run {report.run_id} in {report.archive}"
    return f"nothing {'new' if report.complete else 'was stored'}: {report.archive} stays as it is"


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
        "gaps": _counted(topic.gaps),
        ">waiting": "unknown" if topic.waiting is None else f"{topic.waiting:,}" if topic.waiting else "",
    }
    return [cells[heading] for heading in headings]


def print_notices(report: BackupReport, console: Console, *, grave_only: bool = False) -> None:
    """The most severe notices come last, next to the verdict."""
    shown: Counter[str] = Counter()
    chosen = [notice for notice in report.notices if notice.exit_code or not grave_only]
    for notice in sorted(chosen, key=lambda each: each.exit_code):
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


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


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
    word = f"failed, {interval.failures:,} in a row" if interval.failures else interval.verdict
    return Text.assemble(
        when,
        f"  {done}lag {_lag(interval)}; recovery point {human_time(interval.recovery_point_ms) or 'none yet'}; ",
        (word, "green" if interval.exit_code == EXIT_DONE else "bold red"),
    )


def _lag(interval: Interval) -> str:
    """In offsets and in time, as far as known."""
    offsets = "unknown" if interval.lag_offsets is None else counted(interval.lag_offsets, "offset")
    return offsets if interval.lag_ms is None else f"{offsets}, {interval.lag_ms / 1000:,.0f} s"


def _key(notice: Notice) -> tuple[object, ...]:
    """Without the message, which may contain an age."""
    return notice.kind, notice.topic, notice.partition, notice.first_offset, notice.exit_code

"""The output of `maxbrod backup --follow`: a line for each interval, and each new notice once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from maxbrod.backup.summary import print_notice
from maxbrod.cli.output import err, out, print_error, print_json_line
from maxbrod.errors import EXIT_DONE
from maxbrod.text import counted, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.backup.follow import Interval
    from maxbrod.notices import Notice


class IntervalPrinter:
    """Prints an interval. Call it with each one."""

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

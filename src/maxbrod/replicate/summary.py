"""Prints what replication reports, for people. `--json` has all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from maxbrod.cli.output import err, out, print_error, print_json_line, print_line
from maxbrod.cli.output import table as new_table
from maxbrod.compare.cli import print_comparison, print_difference, print_differences
from maxbrod.model import TopicPartition
from maxbrod.replicate.report import FailBackReport, PartitionStatus, unmatched_line
from maxbrod.text import counted, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.replicate.ingress.run import IngressInterval
    from maxbrod.replicate.promote import PromoteReport
    from maxbrod.replicate.repair import MirrorRepairReport
    from maxbrod.replicate.seed.partition import TreePartition, TreeReport
    from maxbrod.replicate.seed.run import TreeIngress
    from maxbrod.replicate.status import LinkStatus
    from maxbrod.replicate.verify import Verification

_RUNBOOKS: Final = (
    "runbooks: 'maxbrod help fail-over', 'maxbrod help fail-back'; 'maxbrod help replication' says what to do about "
    "each state"
)
_LACKING_SHOWN: Final = 20


def lacking_lines(partitions: Sequence[PartitionStatus]) -> list[str]:
    """A line for each range of offsets that never arrives, with the names at the source."""
    return [
        f"{partition.source}-{partition.partition}  offsets {gap.first_offset:,} to {gap.end_offset - 1:,} "
        f"never arrive: {gap.why} ({gap.reason})"
        for partition in partitions
        for gap in partition.lacking
    ]


def _print_lacking(lines: Sequence[str], print_one: Callable[[str], None] = print_line) -> None:
    for line in lines[:_LACKING_SHOWN]:
        print_one(line)
    if len(lines) > _LACKING_SHOWN:
        print_one(f"and {len(lines) - _LACKING_SHOWN:,} more such ranges: --json has all of them")


def print_ways_back(report: FailBackReport, *, quiet: bool = False) -> None:  # noqa: ARG001 - it says what to do
    headings = ("*topic", "partition", "end", "to come", "diverged", "why not")
    shown = new_table(f"Fail-back: link {report.link}", *headings)
    for partition in report.partitions:
        diverged = "" if partition.diverged is None else f"{partition.diverged[0]:,} to {partition.diverged[1] - 1:,}"
        if partition.diverged_records:
            diverged += f" ({counted(partition.diverged_records, 'record')})"
        shown.add_row(
            partition.topic,
            str(partition.partition),
            f"{partition.end:,}",
            f"{partition.new:,}",
            diverged,
            partition.why or "",
        )
    out.print(shown)
    for note in report.notes[:_LACKING_SHOWN]:
        print_line(note)
    if report.equal is False:
        for difference in report.differences:
            print_difference(difference, out)
        print_line("records before the promotion differ: see 'maxbrod replicate verify'")
    ready = "ready: start 'maxbrod replicate ingress' with the same options"
    if report.ready and any(partition.diverged is not None for partition in report.partitions):
        print_line("the records named as diverged never arrived there; they stay here, before those that come back")
    print_line(ready if report.ready else f"nothing was changed; {_RUNBOOKS}")


def print_status(status: LinkStatus) -> None:
    if status.partitions:
        out.print(_partitions_table(f"Link {status.link}", status.partitions))
    _print_lacking(lacking_lines(status.partitions))
    for each in status.unmatched:
        print_line(unmatched_line(each))
    print_line(f"the source's log ends are known as of {human_time(status.heartbeat_ms) or 'never: no heartbeat'}")
    for one in status.egress:
        has = "all partitions" if one.partitions is None else f"{_ranges(one.partitions) or 'nothing'}"
        if one.lives is False:
            print_line(f"egress {one.instance} has not reported since {human_time(one.reported_ms)}; it archived {has}")
        else:
            print_line(f"egress {one.instance}{' leads, and' if one.leads else ''} archives {has}")
    print_line(f"ingress last reported at {human_time(status.ingress_ms) or 'no time that is known'}")
    if status.silent_ms is not None:
        print_line(
            f"no ingress has reported for {status.silent_ms // 60_000:,} minutes, and records wait: is it running?"
        )
    if any(partition.state == "faulted" for partition in status.partitions):
        print_line("'maxbrod replicate repair' compares faulted mirrors with the archive, and says what can be done")
    print_line(_RUNBOOKS)


def _ranges(partitions: Sequence[TopicPartition]) -> str:
    """Partitions by topic, such as `orders 0-3, 7; payments 0`."""
    words = []
    for topic, group in groupby(partitions, key=lambda each: each.topic):
        numbers = [each.partition for each in group]
        runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0])]
        words.append(f"{topic} " + ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs))
    return "; ".join(words)


def _partitions_table(title: str, partitions: Sequence[PartitionStatus]) -> Any:  # noqa: ANN401 - rich's own
    sources = _are_joined(partitions)
    headings = ("*topic", "partition", "state", "end", "lag in records", "in bytes", "in seconds", "why")
    shown = new_table(title, *(["*source"] if sources else []), *headings)
    for partition in partitions:
        shown.add_row(
            *([partition.source] if sources else []),
            partition.topic,
            str(partition.partition),
            str(partition.state),
            "unknown" if partition.end is None else f"{partition.end:,}",
            "unknown" if partition.lag_records is None else f"{partition.lag_records:,}",
            human_bytes(partition.lag_bytes),
            "unknown" if partition.lag_ms is None else f"{partition.lag_ms / 1000:,.1f}",
            partition.why or "",
        )
    return shown


def _are_joined(partitions: Sequence[PartitionStatus]) -> bool:
    """True if several source topics have one destination, which then does not tell what a line is about."""
    return len({(partition.topic, partition.partition) for partition in partitions}) < len(partitions)


def print_promotion(report: PromoteReport, *, groups: bool, quiet: bool = False) -> None:  # noqa: ARG001 - it says what to do
    """`groups`: whether groups were asked for."""
    sources = _are_joined(report.partitions)
    headings = ("*topic", "partition", "end", "not arrived")
    shown = new_table(f"Promoted: link {report.link}", *(["*source"] if sources else []), *headings)
    for partition in report.partitions:
        missing = "unknown" if partition.lag_records is None else f"{partition.lag_records:,}"
        source = [partition.source] if sources else []
        shown.add_row(*source, partition.topic, str(partition.partition), f"{partition.end or 0:,}", missing)
    out.print(shown)
    known = human_time(report.heartbeat_ms) or "no heartbeat"
    missing = "it is unknown what" if report.missing is None else counted(report.missing, "record")
    print_line(f"{missing} had not arrived, as of the source's last heartbeat ({known})")
    for doubt in report.doubts[:_LACKING_SHOWN]:
        print_line(doubt)
    _print_lacking(lacking_lines(report.partitions))
    if groups:
        print_line(
            f"{counted(report.groups, 'offset', 'was', 'were')} committed for groups; those already set there stay"
        )
    else:
        print_line("no groups were carried: to carry them, run the same command again with --groups")
    if not report.fenced:
        print_line("brokers do not refuse an ingress that still runs: stop every one of this link")


def print_repairs(report: MirrorRepairReport, *, quiet: bool) -> None:
    """Quiet: only what is deleted, or would be."""
    shown = new_table(f"Repair: link {report.link}", "*topic", "partition", "end", "equal up to", "repair", "why")
    for partition in report.partitions:
        why = partition.why or partition.fault or ""
        if partition.why is not None and partition.records is not None:
            why += f"; {counted(partition.records, 'record')} there, {partition.archived_records:,} in the archive"
        proven = "unknown" if partition.proven is None else f"{partition.proven:,}"
        end = "" if partition.end is None else f"{partition.end:,}"
        shown.add_row(partition.topic, str(partition.partition), end, proven, str(partition.repair), why)
    if not quiet:
        if report.partitions:
            out.print(shown)
        else:
            print_line("no selected mirror is faulted")
    for topic in report.deleted:
        print_line(f"{topic} was deleted: ingress mirrors all of it anew, at the same offsets")
    if report.to_delete:
        names = ", ".join(report.to_delete)
        print_line_to_err(f"nothing was deleted; --yes deletes {names}, and ingress mirrors all of it anew")
    if report.groups:
        print_line_to_err(
            f"positions that go with it: {', '.join(report.groups)}; --groups of ingress carries the source's"
        )


def print_verification(found: Verification, *, quiet: bool) -> None:
    if found.report is None:
        print_line("the selected mirrors have no records that the archive has")
    elif quiet:
        print_differences(found.report, err)
    else:
        print_comparison(found.report, quiet=False)
    print_uncompared(found)


def print_uncompared(found: Verification) -> None:
    for word in found.unmatched:
        print_line_to_err(unmatched_line(word))
    for each in found.uncompared:
        print_line_to_err(
            f"{each.where}  offsets {each.first} to {each.end} (exclusive) are not on both sides: not compared"
        )


def print_line_to_err(text: str) -> None:
    err.print(Text(text), soft_wrap=True)


def lag_words(partitions: Sequence[PartitionStatus]) -> str:
    """The lag of all partitions together. What is unknown is said, and never 0."""
    lags = [partition.lag_records for partition in partitions if partition.lag_records is not None]
    if not lags and partitions:
        return "unknown"
    seconds = [partition.lag_ms for partition in partitions if partition.lag_ms is not None]
    lag = counted(sum(lags), "record") + (f", {max(seconds) / 1000:,.1f} s" if seconds else "")
    unknown = len(partitions) - len(lags)
    return lag + (f", unknown of {counted(unknown, 'partition')}" if unknown else "")


class IngressPrinter:
    """A line for each interval, and each new trouble of a partition once."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self._quiet, self._as_json = quiet, as_json
        self._told: set[tuple[str, int, str]] = set()
        self._told_once: set[str] = set()

    def __call__(self, interval: IngressInterval) -> None:
        if self._as_json:
            print_json_line(interval.as_dict())
            return
        if interval.error is not None:
            print_error(interval.error, as_json=False)
        report = interval.report
        if report is None:
            return
        sources = _are_joined(report.partitions)
        troubles = {
            (f"{each.source} in {each.topic}" if sources else each.topic, each.partition, f"{each.state}: {each.why}")
            for each in report.partitions
            if each.why
        }
        for topic, partition, what in sorted(troubles - self._told):
            print_line_to_err(f"{topic}-{partition}  {what}")
        self._told = troubles
        lacking = [line for line in lacking_lines(report.partitions) if line not in self._told_once]
        lacking += [line for line in map(unmatched_line, report.unmatched) if line not in self._told_once]
        self._told_once.update(lacking)
        _print_lacking(lacking, print_line_to_err)
        if self._quiet:
            return
        if report.standby_for is not None:
            out.print(Text(f"{human_time(report.finished_at_ms)}  standing by: {report.standby_for} leads"))
            return
        states = ", ".join(f"{count:,} {state}" for state, count in report.states.items()) or "nothing to mirror"
        lag = lag_words(report.partitions)
        took_s = (report.finished_at_ms - report.started_at_ms) / 1000
        when = human_time(report.finished_at_ms)
        out.print(
            Text(f"{when}  {counted(report.appended, 'offset')} appended in {took_s:,.1f} s; lag {lag}; {states}"),
            soft_wrap=True,
        )


class TreeChangesPrinter:
    """Prints a line for each partition whose state has changed."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str, int], str] = {}

    def __call__(self, ingress: TreeIngress) -> None:
        for status in ingress.statuses():
            name, state = (status.region, status.topic, status.partition), _state(status)
            if self._states.get(name) != state:
                self._states[name] = state
                print_line(f"{status.region}/{status.topic}-{status.partition}: {state}, checkpoint {_offset(status)}")


def print_tree_report(report: TreeReport, *, quiet: bool) -> None:
    shown = new_table("Partitions", "*source", "destination", "state", "checkpoint", "records", "lost")
    for partition in report.partitions:
        if not quiet or partition.lost or partition.fault is not None:
            lost = ", ".join(_lost(partition, offsets) for offsets in partition.lost)
            name = f"{partition.region}/{partition.topic}-{partition.partition}"
            shown.add_row(
                name, partition.destination, _state(partition), _offset(partition), f"{partition.records:,}", lost
            )
    if shown.row_count:
        out.print(shown)
    if not quiet:
        print_line(f"{counted(report.records, 'record', 'was', 'were')} produced, {report.delivery}")


def _lost(each: TreePartition, offsets: tuple[int, int]) -> str:
    return f"{offsets[0]} to {offsets[1]}{' (deleted at the source)' if offsets in each.deleted else ''}"


def _state(each: TreePartition) -> str:
    return each.state if each.fault is None else f"faulted: {each.fault}"


def _offset(each: TreePartition) -> str:
    return "none" if each.checkpoint is None else str(each.checkpoint)

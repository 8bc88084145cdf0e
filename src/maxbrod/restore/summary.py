"""The plan and the report of a restore, printed for a person, and the decision between them.

The length is bounded; `--json` has everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from maxbrod.cli.output import agreed, err, out, print_first, print_json, print_line, print_marked, table
from maxbrod.errors import EXIT_DONE, MaxbrodError, RefusedError, error_of
from maxbrod.restore.plan.access import AccessPlan, describe_acl, describe_entity, describe_quota
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind, refusal
from maxbrod.restore.plan.plan import LeftOut, PlanLine, RestorePlan, SchemasPlan, describe
from maxbrod.restore.report import AGAIN, ColdReport, PartitionReport, RestoreReport, pruned_in
from maxbrod.text import counted, human_bytes, human_count, human_time
from maxbrod.transform.summary import print_transform

if TYPE_CHECKING:
    from maxbrod.groups.plan import GroupPosition, MissingGroup


LINES_SHOWN_MAX: Final = 60
OBSTACLES_SHOWN_MAX: Final = 10
"""Obstacles of one kind."""


def plan_document(plan: RestorePlan, refused: MaxbrodError | None) -> dict[str, Any]:
    """For `--dry-run --json`."""
    return {
        "restore_id": plan.restore_id,
        "archive": plan.archive.url,
        "run_id": plan.archive.run_id,
        "cluster_id": plan.cluster_id,
        "since_ms": plan.since_ms,
        "until_ms": plan.until_ms,
        "records": plan.records,
        "bytes": plan.bytes,
        "lines": [asdict(line) for line in describe(plan)],
        "groups": list(plan.groups),
        "access": asdict(plan.access),
        "provenance": plan.provenance,
        "transform": None if plan.transform is None else asdict(plan.transform),
        "left_out": [asdict(omitted) for omitted in plan.left_out],
        "schemas": None if plan.schemas is None else asdict(plan.schemas),
        "pruned": list(pruned_in(plan)),
        "obstacles": [asdict(obstacle) for obstacle in plan.obstacles],
        "refused": None if refused is None else refused.as_dict(),
    }


def print_plan(plan: RestorePlan) -> None:
    lines = describe(plan)
    if lines:
        shown = table("Plan", "*topic", "*into", ">parts", ">records", ">size", "offsets", "*why")
        for line in lines[:LINES_SHOWN_MAX]:
            shown.add_row(*_cells(line))
        out.print(shown)
    if len(lines) > LINES_SHOWN_MAX:
        print_line(f"and {len(lines) - LINES_SHOWN_MAX:,} more lines; --json shows all")
    for line in lines:
        if line.fill_offsets:
            filled = counted(line.fill_offsets, "offset")
            what = f"{filled} without a record to fill, in about {line.fill_seconds:.0f} s"
            print_line(f"{line.target}: {what}")
    print_line(
        f"up to {human_count(plan.records)} records, {human_bytes(plan.bytes)} in {plan.archive.url}, "
        f"as of run {plan.archive.run_id or 'unknown'}"
    )
    _print_sources(plan.known_from, plan.left_out, pruned_in(plan))
    if plan.since_ms is not None:
        print_line(f"only records from {human_time(plan.since_ms)} on")
    if plan.until_ms is not None:
        print_line(f"only records before {human_time(plan.until_ms)}")
    _print_planned_groups(plan)
    if plan.provenance:
        print_line("every record gets headers 'maxbrod.source.…' that name its source")
    print_transform(plan.transform)
    _print_access(plan.access, done=False)
    _print_schemas(plan.schemas)


def _print_schemas(schemas: SchemasPlan | None) -> None:
    if schemas is None:
        return
    how = "under new ids, which records get" if schemas.remap else "with their ids"
    if schemas.registered is None:
        print_line(
            f"schemas: {counted(schemas.versions, 'version')} into {schemas.url} {how}; "
            f"{schemas.present:,} of them are there already"
        )
    else:
        print_line(
            f"schemas: {counted(schemas.versions, 'version')} in {schemas.url} {how}; "
            f"{schemas.registered:,} of them were registered"
        )
    print_first([f"not restored: {words}" for words in schemas.left_out], OBSTACLES_SHOWN_MAX, indent="  ")


def _print_planned_groups(plan: RestorePlan) -> None:
    if not plan.groups:
        return
    print_line(f"groups: {', '.join(plan.groups)}")
    if any(topic.target.repartitioned for topic in plan.topics):
        # How many is known only when the records have their places.
        print_line("records change their partition: no group skips any, some are seen twice; the report counts them")


def _print_sources(known_from: Mapping[str, str], left_out: Sequence[LeftOut], pruned: Sequence[str]) -> None:
    """Print the topics that the cluster had lost, or could no longer describe, and what is not restored."""
    known = [f"{topic}: restored as run {run_id} last saw it" for topic, run_id in known_from.items()]
    omitted = [f"{topic.topic}: left out: {topic.why}" for topic in left_out]
    for lines in (known, omitted, pruned):
        print_first(lines, OBSTACLES_SHOWN_MAX)


def print_missing_groups(missing: Sequence[MissingGroup]) -> None:
    for group in missing[:OBSTACLES_SHOWN_MAX]:
        print_marked(f"group {group.group} not restored", group.why)
    if len(missing) > OBSTACLES_SHOWN_MAX:
        print_line(f"and {counted(len(missing) - OBSTACLES_SHOWN_MAX, 'more group')}; --json shows all")


def _print_retention(retention: Sequence[str], console: Console) -> None:
    """Printed right above the last line, where nobody overlooks it."""
    for line in retention[:OBSTACLES_SHOWN_MAX]:
        print_marked("retention", line, to=console)
    if len(retention) > OBSTACLES_SHOWN_MAX:
        more = f"retention: {counted(len(retention) - OBSTACLES_SHOWN_MAX, 'more topic')}; --json shows all"
        console.print(Text(more, style="bold red"), soft_wrap=True)


def _print_access(access: AccessPlan, *, done: bool) -> None:
    """The ACLs, quotas and settings that are or will be restored, and those that are not."""
    acls, quotas = access.acls, access.quotas
    if acls is not None:
        words = f"{len(acls.create):,} {'created' if done else 'to create'}, {len(acls.present):,} already there"
        print_line(f"ACLs: {words}, {len(acls.left_out):,} about nothing that is restored")
        print_first([describe_acl(acl) for acl in acls.create], OBSTACLES_SHOWN_MAX, indent="  ")
    if quotas is not None:
        words = f"{len(quotas.set):,} {'set' if done else 'to set'}, {len(quotas.present):,} already there"
        print_line(f"quotas: {words}, {len(quotas.kept):,} for which the target keeps other values")
        print_first([describe_quota(quota) for quota in quotas.set], OBSTACLES_SHOWN_MAX, indent="  ")
    if access.settings is not None:
        words = f"{len(access.settings.set):,} {'made' if done else 'to make'}"
        print_line(f"settings: {words}, {len(access.settings.kept):,} for which the target keeps other values")
        made = [f"{describe_entity(entity)}: {', '.join(sorted(entity.values))}" for entity in access.settings.set]
        print_first(made, OBSTACLES_SHOWN_MAX, indent="  ")


def _cells(line: PlanLine) -> list[str]:
    into = f"{line.target} (new)" if line.created else line.target
    return [
        line.source,
        into,
        f"{line.partitions:,} to {line.target_partitions:,}" if line.repartitioned else f"{line.partitions:,}",
        human_count(line.records),
        human_bytes(line.bytes),
        line.offsets,
        line.why,
    ]


def print_obstacles(
    plan: RestorePlan, console: Console, *, fatal_only: bool, unknown: bool, told: Obstacle | None = None
) -> None:
    """Fatal ones last, where they are seen first. `unknown`: also print rights that are unknown.

    `told` is the one that the error names, which ends the command.
    """
    shown: Counter[ObstacleKind] = Counter()
    for obstacle in reversed(plan.obstacles):
        if obstacle == told:
            continue
        if not obstacle.fatal and (fatal_only or (obstacle.kind is ObstacleKind.RIGHT_UNKNOWN and not unknown)):
            continue
        shown[obstacle.kind] += 1
        if shown[obstacle.kind] <= OBSTACLES_SHOWN_MAX:
            # Records that a broker deletes are gone for good, so this warning looks like an error.
            style = "bold red" if obstacle.fatal or obstacle.kind is ObstacleKind.RETENTION else "yellow"
            print_marked(obstacle.kind, str(obstacle), obstacle.hint, to=console, style=style)
    for kind, count in shown.items():
        if count > OBSTACLES_SHOWN_MAX:
            more = f"{kind}: {count - OBSTACLES_SHOWN_MAX:,} more; --dry-run --json shows all"
            console.print(Text(more), soft_wrap=True)


def print_report(report: RestoreReport, *, quiet: bool) -> None:
    if quiet:
        print_failures(report, err)
        _print_retention(report.retention, err)
        return
    cold = report if isinstance(report, ColdReport) else None
    if cold is None or report.exit_code == EXIT_DONE:
        _print_topics(report)
    print_transform(report.transform)
    if report.groups:
        print_groups(report.groups, report.run_id)
    print_missing_groups(report.groups_missing)
    if report.access is not None:
        _print_access(report.access, done=True)
    _print_schemas(report.schemas)
    _print_sources(report.known_from, report.left_out, report.pruned)
    print_failures(report, out)
    print_first([f"left out: {gap}" for gap in report.accepted_gaps], LINES_SHOWN_MAX)
    took_s = max((report.finished_at_ms - report.started_at_ms) / 1000, 0.001)
    resumed = ", resumed" if report.resumed else ""
    written = f", {counted(cold.segments, 'segment')}, {human_bytes(cold.bytes)} of log" if cold else ""
    print_line(f"{counted(report.records, 'record')}{written}, {took_s:,.1f} s; restore {report.restore_id}{resumed}")
    if cold is not None and cold.batches_lowered:
        print_line(f"batches with a lower leader epoch than before: {cold.batches_lowered:,}")
    _print_retention(report.retention, out)
    out.print(verdict(report), soft_wrap=True)


def _print_topics(report: RestoreReport) -> None:
    times = len(set(report.usable_at_ms.values())) > 1
    shown = table("", "*topic", "*into", ">parts", ">records", "offsets", *([">usable after"] if times else []))
    shown.title = None

    def key(report: PartitionReport) -> tuple[str, str]:
        return report.source, report.target

    topics = [(names, list(group)) for names, group in groupby(sorted(report.partitions, key=key), key=key)]
    for (source, target), parts in topics[:LINES_SHOWN_MAX]:
        modes = ", ".join(sorted({part.offsets for part in parts}))
        since_ms = report.usable_at_ms.get(target)
        after = "not yet" if since_ms is None else f"{(since_ms - report.started_at_ms) / 1000:,.1f} s"
        records = human_count(sum(part.records for part in parts))
        shown.add_row(source, target, f"{len(parts):,}", records, modes, *([after] if times else []))
    if topics:
        out.print(shown)
    if len(topics) > LINES_SHOWN_MAX:
        print_line(f"and {counted(len(topics) - LINES_SHOWN_MAX, 'more topic')}")


def print_groups(groups: Sequence[GroupPosition], run_id: str | None) -> None:
    """The old and the new offsets of groups. Names the run that they are from if it is not `run_id`."""
    shown = table("Groups", "*group", "*partition", ">from", ">to", "*how")
    for group in groups[:LINES_SHOWN_MAX]:
        shown.add_row(
            group.group,
            f"{group.topic}-{group.partition}",
            "" if group.source_offset is None else f"{group.source_offset}",
            "" if group.offset is None else f"{group.offset}",
            group.refused or group.why or _how(group, run_id),
        )
    out.print(shown)
    again = sum(group.seen_twice_max for group in groups if group.refused is None)
    if again:
        print_line(f"records changed their partition: no record is skipped, up to {again:,} are seen twice")
    if len(groups) > LINES_SHOWN_MAX:
        print_line(f"and {counted(len(groups) - LINES_SHOWN_MAX, 'more position')}; --json shows all")


def _how(position: GroupPosition, run_id: str | None) -> str:
    as_of = f", as run {position.run_id} knew it" if position.run_id not in {None, run_id} else ""
    twice = f", up to {position.seen_twice_max:,} seen twice" if position.seen_twice_max else ""
    # The record is the same, and its offset is another one.
    moved = " record" if position.move == "same" and position.source_offset != position.offset else ""
    behind = "" if position.behind is None else f", {position.behind:,} behind the log's end"
    return f"{position.move}{moved}{twice}{', members removed' if position.forced else ''}{behind}{as_of}"


def print_failures(report: RestoreReport, console: Console) -> None:
    """Print each error once, with its partitions: what stopped a task stopped all of its partitions."""
    failures: dict[tuple[str, str | None], list[str]] = {}
    for partition in report.partitions:
        if partition.failure is not None:
            where = f"{partition.target}-{partition.partition}"
            what = error_of(partition.failure).told_of(where), partition.failure.get("hint")
            failures.setdefault(what, []).append(where)
    for (message, hint), places in failures.items():
        more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
        print_marked(f"{places[0]}{more}", message, hint, to=console)


def verdict(report: RestoreReport) -> Text:
    gaps = f"all but {counted(len(report.accepted_gaps), 'accepted gap')}, named above, which the archive has lost"
    if isinstance(report, ColdReport):
        return _cold_verdict(report, gaps)
    complete = ": every committed record that was requested is in the target, once"
    if report.complete and report.retention:
        count = f"{len(report.retention):,} topic{'s' if len(report.retention) > 1 else ''}"
        return Text.assemble(
            ("complete", "bold green"),
            f"{complete}; ",
            (f"but the brokers will delete records of {count}, see above", "bold red"),
        )
    if report.complete:
        return Text.assemble(("complete", "bold green"), complete)
    if report.exit_code == EXIT_DONE:
        return Text.assemble(("incomplete", "bold yellow"), f": restored {gaps}")
    if any(partition.failure is not None for partition in report.partitions):
        return Text.assemble(("not complete", "bold red"), f"; {AGAIN}")
    if not any(group.refused is not None for group in report.groups):
        return Text.assemble(("records complete, groups not", "bold red"), "; those above could not be moved")
    return Text.assemble(
        ("records complete, groups not", "bold red"),
        f"; stop their members, then: maxbrod groups apply --restore {report.restore_id}",
    )


def _cold_verdict(report: ColdReport, gaps: str) -> Text:
    if report.exit_code != EXIT_DONE:
        return Text.assemble(("not complete", "bold red"), "; the directories are unchanged")
    groups = f"; then groups: maxbrod groups apply --restore {report.restore_id}" if report.remembered else ""
    if not report.complete:
        return Text.assemble(("incomplete", "bold yellow"), f": restored {gaps}; start the brokers{groups}")
    return Text.assemble(("complete", "bold green"), f": start the brokers{groups}")


def decide(plan: RestorePlan, *, dry_run: bool, yes: bool, quiet: bool, as_json: bool) -> int | None:
    """Show the plan and ask for confirmation. RefusedError: not confirmed.

    Return the exit code of a command that ends here, or None if the plan may run.
    """
    if dry_run:
        return _show(plan, quiet=quiet, as_json=as_json)
    refused = refusal(plan.obstacles)
    asks = out.is_terminal and not (yes or quiet or as_json)
    if asks:
        print_plan(plan)
    if not as_json:
        told = next((obstacle for obstacle in plan.obstacles if obstacle.fatal), None)
        print_obstacles(plan, err, fatal_only=quiet, unknown=False, told=told)
    if refused is not None and as_json:
        print_json({**refused.as_dict(), "obstacles": [asdict(obstacle) for obstacle in plan.obstacles]})
        return refused.exit_code
    if refused is not None:
        raise refused
    if asks and not agreed("Restore this?"):
        raise RefusedError(
            "nothing was changed: the restore was not confirmed", hint="use --yes to run without confirmation"
        )
    return None


def _show(plan: RestorePlan, *, quiet: bool, as_json: bool) -> int:
    refused = refusal(plan.obstacles)
    if as_json:
        print_json(plan_document(plan, refused))
    else:
        if not quiet:
            print_plan(plan)
        print_obstacles(plan, out, fatal_only=quiet, unknown=True)
        if not quiet:
            print_line("nothing was changed" if refused is None else "this cannot be restored; nothing was changed")
    return EXIT_DONE if refused is None else refused.exit_code

"""The restore planner: a form, the command that it means, and the plan that the command would make. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.restore.plan.obstacles import Obstacle, refusal
from maxbrod.restore.plan.plan import PlanLine, RestorePlan, describe

if TYPE_CHECKING:
    from maxbrod.archive.runs import RunSummary

LISTS: Final = ("topics", "exclude", "ranges", "topic_ids", "rename", "groups")
"""Fields of several words, one on a line."""
TEXTS: Final = ("since", "until", "as_of", "prefix", "suffix", "partitions", "offsets", "partition_count")
SWITCHES: Final = ("accept_gaps", "with_acls", "with_quotas", "with_settings", "internal")
_LINES_SHOWN: Final = 200
_OBSTACLES_SHOWN: Final = 100
_RUNS_OFFERED: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRestore:
    """A plan for the page."""

    lines: tuple[PlanLine, ...]
    lines_total: int
    records: int
    bytes: int
    run_id: str | None
    groups: tuple[str, ...]
    obstacles: tuple[Obstacle, ...]
    obstacles_total: int
    refused: str | None
    """Why it would not run."""
    fill_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreView:
    given: Mapping[str, Any]
    bootstrap: str
    command: str
    dry_run: str
    """The same command, which only plans."""
    plan: PlannedRestore | None
    error: str | None
    hint: str | None
    runs: tuple[tuple[str, int], ...]
    """Points in time that can be chosen: ids and times, newest first."""
    cluster: str | None
    """The cluster that was asked; None: an empty one is assumed."""
    can_ask: bool


def form_of(parameters: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The options that a form names, as the file or a Python call would give them. Unknown fields are ignored."""
    found: dict[str, Any] = {}
    for name in LISTS:
        words = [word.strip() for text in parameters.get(name, ()) for word in text.splitlines()]
        if chosen := [word for word in words if word]:
            found[name] = chosen
    for name in TEXTS:
        text = next((text.strip() for text in parameters.get(name, ()) if text.strip()), None)
        if text is not None:
            found[name] = [text] if name == "partition_count" else text
    found |= {name: True for name in SWITCHES if parameters.get(name)}
    if found.get("offsets") == "auto":
        del found["offsets"]
    return found


def planned(plan: RestorePlan) -> PlannedRestore:
    lines = describe(plan)
    refused = refusal(plan.obstacles)
    return PlannedRestore(
        lines=lines[:_LINES_SHOWN],
        lines_total=len(lines),
        records=plan.records,
        bytes=plan.bytes,
        run_id=plan.archive.run_id,
        groups=plan.groups,
        obstacles=plan.obstacles[:_OBSTACLES_SHOWN],
        obstacles_total=len(plan.obstacles),
        refused=None if refused is None else refused.message,
        fill_seconds=sum(line.fill_seconds for line in lines),
    )


def points_in_time(runs: Sequence[RunSummary]) -> tuple[tuple[str, int], ...]:
    """Runs that a restore can name, newest first. `runs` are oldest first."""
    found = [(run.run_id, run.finished_at) for run in reversed(runs) if run.snapshot is not None]
    return tuple(found[:_RUNS_OFFERED])

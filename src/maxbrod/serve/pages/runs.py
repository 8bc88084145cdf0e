"""Runs of an archive, and one of them in detail. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.serve.pages.frame import Listed, ending_state, link, listed

if TYPE_CHECKING:
    from maxbrod.archive.runs import RunReport, RunSummary

PAGE_SIZE: Final = 100
_SHOWN_ELSEWHERE: Final = frozenset(
    {"command", "exit_code", "records", "bytes", "topics", "findings", "hints", "notices"}
)
"""Statistics that have a place of their own on the page."""
_TEXT_MAX: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    run: RunSummary
    state: str
    word: str
    finding: str | None
    """The first of those that it recorded."""
    href: str

    @property
    def took_ms(self) -> int:
        return self.run.finished_at - self.run.started_at


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsView:
    lines: Listed[RunLine]
    verbs: tuple[tuple[str, int], ...]
    """The verbs of all runs, and how many each has."""
    verb: str
    trouble: bool
    """True if only runs are shown that did not end well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    line: RunLine
    report: RunReport
    findings: tuple[str, ...]
    hints: tuple[str, ...]
    statistics: tuple[tuple[str, str], ...]
    restore_href: str | None
    """A restore as of this run, if it is a point in time."""


def runs_view(
    slug: str, runs: Sequence[RunSummary], *, first: int = 0, verb: str = "", trouble: bool = False
) -> RunsView:
    """Newest first. `runs` are oldest first."""
    verbs: dict[str, int] = {}
    for run in runs:
        verbs[run.command or "unknown"] = verbs.get(run.command or "unknown", 0) + 1
    chosen = [run for run in reversed(runs) if verb in {"", run.command or "unknown"}]
    if trouble:
        chosen = [run for run in chosen if ending_state(run.exit_code)[0] != "good"]
    page = listed(chosen, first, PAGE_SIZE)
    return RunsView(
        lines=Listed(
            items=[run_line(slug, run) for run in page.items], total=page.total, first=page.first, size=page.size
        ),
        verbs=tuple(sorted(verbs.items())),
        verb=verb,
        trouble=trouble,
    )


def run_line(slug: str, run: RunSummary) -> RunLine:
    state, word = ending_state(run.exit_code)
    return RunLine(
        run=run,
        state=state,
        word=word,
        finding=next(iter(_texts(run.statistics.get("findings"))), None),
        href=link(slug, "run", id=run.run_id),
    )


def run_view(slug: str, report: RunReport) -> RunView:
    statistics = report.run.statistics
    return RunView(
        line=run_line(slug, report.run),
        report=report,
        findings=_texts(statistics.get("findings")),
        hints=_texts(statistics.get("hints")),
        statistics=tuple(
            (name, _text(value)) for name, value in sorted(statistics.items()) if name not in _SHOWN_ELSEWHERE
        ),
        restore_href=None if report.run.snapshot is None else link(slug, "restore", as_of=report.run.run_id),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _text(value: Any) -> str:  # noqa: ANN401 - any JSON
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}: {_text(inner)}" for name, inner in value.items())
    elif isinstance(value, list):
        text = ", ".join(map(_text, value))
    else:
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"

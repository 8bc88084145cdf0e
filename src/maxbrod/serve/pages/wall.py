"""The wall: all archives, a row each. First what people look for: can I restore, and to when. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.inspect.promises import ArchiveFacts, daily_growth
from maxbrod.notices import Promise, PromiseState
from maxbrod.serve.pages.charts import Rect
from maxbrod.serve.pages.frame import STATES, UNKNOWN, ending_state, gravest_promise
from maxbrod.text import human_age, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.archive.archive import Proof
    from maxbrod.archive.runs import RunSummary

_BARS: Final = 24
_BAR_WIDTH: Final = 8.0
_HEIGHT: Final = 22.0
_FAR: Final = 2.0
"""A run that took this many times as long as the median fills its bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """A check or a drill on the wall."""

    state: str
    word: str
    at_ms: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WallRow:
    slug: str
    url: str
    layout: str | None
    state: str
    word: str
    sentence: str
    """What is wrong; or that nothing is."""
    hint: str | None
    recovery_point_ms: int | None
    recovery_state: str
    recovery_text: str
    bars: tuple[Rect, ...]
    bars_text: str
    """The same for those who see no bars."""
    deep_check: Proven
    drill: Proven
    bytes: int | None
    growth: str
    checked_at_ms: int | None


def wall_row(
    slug: str,
    url: str,
    *,
    promises: Sequence[Promise],
    facts: ArchiveFacts | None,
    runs: Sequence[RunSummary],
    checked_at_ms: int | None,
    reading: bool,
) -> WallRow:
    """`runs` are oldest first. `reading`: the archive is being read for the first time."""
    worst = gravest_promise(promises)
    state, word = UNKNOWN if worst is None else STATES[worst.state]
    if worst is None:
        sentence = "It is being read." if reading else "It is being checked; until then nothing is said about it."
    elif worst.state is PromiseState.OK:
        sentence = "Every promise holds."
    else:
        sentence = f"{worst.name}: {worst.text}"
    by_name = {promise.name: promise for promise in promises}
    point = by_name.get("recovery point")
    growth = None if facts is None else daily_growth(facts)
    return WallRow(
        slug=slug,
        url=url,
        layout=None if facts is None else facts.layout,
        state=state,
        word=word,
        sentence=sentence,
        hint=None if worst is None else worst.hint,
        recovery_point_ms=None if facts is None else facts.recovery_point_ms,
        recovery_state="none" if point is None else STATES[point.state][0],
        recovery_text=_recovery_text(facts, point),
        bars=run_bars(runs),
        bars_text=bars_text(runs),
        deep_check=_proven(by_name.get("deep check"), None if facts is None else facts.deep_check),
        drill=_proven(by_name.get("drill"), None if facts is None else facts.drill),
        bytes=None if facts is None else facts.bytes,
        growth="" if growth is None else f"{human_bytes(growth)} a day",
        checked_at_ms=checked_at_ms,
    )


def _recovery_text(facts: ArchiveFacts | None, point: Promise | None) -> str:
    if facts is None:
        return ""
    if not facts.own_layout:
        return "another tool's archive records none"
    return "" if point is None else point.text


def _proven(promise: Promise | None, proof: Proof | None) -> Proven:
    if promise is None:
        return Proven(state="none", word="unknown", at_ms=None, text="")
    state, word = STATES[promise.state]
    at_ms = None if proof is None else proof.finished_at_ms
    return Proven(state=state, word="never" if at_ms is None else word, at_ms=at_ms, text=promise.text)


def run_bars(runs: Sequence[RunSummary]) -> tuple[Rect, ...]:
    """The last runs of the archive, a bar each: its height is how long it took beside the others."""
    recent = list(runs[-_BARS:])
    times = sorted(run.finished_at - run.started_at for run in recent)
    far = max(times[len(times) // 2] * _FAR, 1) if times else 1
    found = []
    for place, run in enumerate(recent):
        state, word = ending_state(run.exit_code)
        took_ms = run.finished_at - run.started_at
        size = 6.0 + (_HEIGHT - 6.0) * min(max(took_ms, 0) / far, 1.0)
        title = f"{run.command or 'run'} {human_time(run.finished_at)}: {word}, took {human_age(took_ms)}"
        # Also without colour, a run that did not end well stands out: it hangs from the top.
        y = 0.0 if state != "good" else _HEIGHT - size
        found.append(
            Rect(
                x=place * _BAR_WIDTH,
                width=_BAR_WIDTH - 2,
                y=round(y, 1),
                height=round(size, 1),
                cover=state,
                title=title,
            )
        )
    return tuple(found)


def bars_text(runs: Sequence[RunSummary]) -> str:
    recent = runs[-_BARS:]
    good = sum(ending_state(run.exit_code)[0] == "good" for run in recent)
    return f"{good} of the last {len(recent)} runs ended well" if recent else "no runs are recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class WallSummary:
    """How many archives are in which state, in words."""

    good: int
    warn: int
    bad: int
    unknown: int

    @property
    def sentence(self) -> str:
        parts = [
            f"{count} {word}"
            for count, word in (
                (self.bad, "failed"),
                (self.warn, "with warnings"),
                (self.good, "in order"),
                (self.unknown, "not checked yet"),
            )
            if count
        ]
        return ", ".join(parts) or "no archive"


def summarise_wall(rows: Sequence[WallRow]) -> WallSummary:
    states = [row.state for row in rows]
    return WallSummary(
        good=states.count("good"), warn=states.count("warn"), bad=states.count("bad"), unknown=states.count("none")
    )


def in_order_of_concern(rows: Sequence[WallRow]) -> list[WallRow]:
    """Archives that need attention first; the others as they were named."""
    order = {"bad": 0, "warn": 1, "none": 2, "good": 3}
    return sorted(rows, key=lambda row: order[row.state])

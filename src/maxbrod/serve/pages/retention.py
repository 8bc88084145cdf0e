"""The retention simulator: what a policy would keep and drop, now and later, if nothing new came. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.serve.pages.charts import Rect
from maxbrod.text import human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.prune.report import PruneReport
    from maxbrod.prune.runs import RunDecision

DATA_FIELDS: Final = (
    ("older_than", "Records older than", "90d"),
    ("topic_bytes", "Each topic at most", "500GB"),
    ("archive_bytes", "The archive at most", "10TB"),
    ("deleted_before", "Topics that the cluster lost before", "365d"),
)
RUN_FIELDS: Final = (
    ("keep_last", "Last", "10"),
    ("keep_within", "All within", "30d"),
    ("keep_hourly", "Hourly", "24"),
    ("keep_daily", "Daily", "30"),
    ("keep_weekly", "Weekly", "8"),
    ("keep_monthly", "Monthly", "12"),
    ("keep_yearly", "Yearly", "5"),
)
SWITCHES: Final = ("as_source", "compacted_too")
LATER_DAYS: Final = (0, 7, 30, 90, 180, 365)
_NUMBERS: Final = frozenset({name for name, _, _ in RUN_FIELDS} - {"keep_within"})
_TOPICS_SHOWN: Final = 200
_RUNS_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFate:
    """What would become of one topic."""

    topic: str
    kept_bytes: int
    going_bytes: int
    kept_records: int
    going_records: int
    why: tuple[str, ...]
    """Why segments stay or go, those that go first."""
    bar: tuple[Rect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterState:
    """The archive after the policy was applied at some time, if nothing was added until then."""

    days: int
    kept_bytes: int
    going_bytes: int
    bar: tuple[Rect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionView:
    given: Mapping[str, Any]
    command: str | None
    report: PruneReport | None
    topics: tuple[TopicFate, ...]
    topics_total: int
    runs_going: tuple[RunDecision, ...]
    runs_kept: tuple[RunDecision, ...]
    later: tuple[LaterState, ...]
    error: str | None = None
    hint: str | None = None


def policy_of(parameters: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The options of a prune that a form names. What is no number stays text, which the option refuses."""
    found: dict[str, Any] = {}
    for name in (name for name, _, _ in (*DATA_FIELDS, *RUN_FIELDS)):
        text = next((text.strip() for text in parameters.get(name, ()) if text.strip()), None)
        if text is not None:
            found[name] = int(text) if name in _NUMBERS and text.isdecimal() else text
    words = [word for text in parameters.get("topics", ()) for word in text.split()]
    if words:
        found["topics"] = words
    return found | {name: True for name in SWITCHES if parameters.get(name)}


def topic_fates(report: PruneReport) -> list[TopicFate]:
    """By topic, those that would lose most first."""
    sums: dict[str, list[int]] = {}
    reasons: dict[str, dict[tuple[bool, str], int]] = {}
    for item in report.items:
        mine = sums.setdefault(item.topic, [0, 0, 0, 0])
        place = 0 if item.keep else 1
        mine[place] += item.bytes
        mine[2 + place] += item.records
        why = reasons.setdefault(item.topic, {})
        why[item.keep, item.reason] = why.get((item.keep, item.reason), 0) + item.bytes
    largest = max((kept + going for kept, going, _, _ in sums.values()), default=0)
    fates = [
        TopicFate(
            topic=topic,
            kept_bytes=kept,
            going_bytes=going,
            kept_records=kept_records,
            going_records=going_records,
            why=tuple(
                f"{'stays' if keep else 'goes'}: {reason} ({human_bytes(size)})"
                for (keep, reason), size in sorted(reasons[topic].items())
            ),
            bar=_bar(kept, going, largest),
        )
        for topic, (kept, going, kept_records, going_records) in sums.items()
    ]
    return sorted(fates, key=lambda fate: (-fate.going_bytes, fate.topic))


def _bar(kept: int, going: int, whole: int) -> tuple[Rect, ...]:
    """What goes on the left, what stays on the right of it."""
    if whole <= 0:
        return ()
    first = round(1000 * going / whole, 2)
    rects = (
        Rect(x=0, width=first, cover="going", title=f"{human_bytes(going)} would go"),
        Rect(x=first, width=round(1000 * kept / whole, 2), cover="data", title=f"{human_bytes(kept)} would stay"),
    )
    return tuple(rect for rect in rects if rect.width > 0)


def later_states(totals: Sequence[tuple[int, int, int]]) -> tuple[LaterState, ...]:
    """The states of the archive, from days, kept bytes and going bytes."""
    whole = max((kept + going for _, kept, going in totals), default=0)
    return tuple(
        LaterState(days=days, kept_bytes=kept, going_bytes=going, bar=_bar(kept, going, whole))
        for days, kept, going in totals
    )


def retention_view(
    given: Mapping[str, Any], command: str | None, report: PruneReport, later: Sequence[tuple[int, int, int]]
) -> RetentionView:
    fates = topic_fates(report)
    runs = list(reversed(report.runs))
    return RetentionView(
        given=given,
        command=command,
        report=report,
        topics=tuple(fates[:_TOPICS_SHOWN]),
        topics_total=len(fates),
        runs_going=tuple([run for run in runs if not run.keep][:_RUNS_SHOWN]),
        runs_kept=tuple([run for run in runs if run.keep][:_RUNS_SHOWN]),
        later=later_states(later),
    )


def empty_retention(given: Mapping[str, Any], error: str | None = None, hint: str | None = None) -> RetentionView:
    """The form alone, or with what is wrong in it."""
    return RetentionView(
        given=given,
        command=None,
        report=None,
        topics=(),
        topics_total=0,
        runs_going=(),
        runs_kept=(),
        later=(),
        error=error,
        hint=hint,
    )


def ages_text(report: PruneReport) -> str:
    """Up to when ages count."""
    return f"Ages count up to {human_time(report.ages_until_ms)}."

"""Drills and checks, the growth of an archive and what it costs, and its replication. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.archive.archive import Proof, ProofKind
from maxbrod.drill.html import TREND_HEADINGS, speed_of, trend_cells
from maxbrod.inspect.promises import ArchiveFacts, daily_growth, recovery_time_s
from maxbrod.serve.pages.charts import LineChart, growth_values, line_chart
from maxbrod.text import human_age, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.archive.runs import RunSummary
    from maxbrod.model import PartitionId
    from maxbrod.replicate.heartbeat import Heartbeat
    from maxbrod.replicate.status import EgressInstance, LinkStatus

_GB: Final = 10**9
_MONTH_DAYS: Final = 30
_TOPICS_SHOWN: Final = 100
_SHOWN_RUNS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLine:
    """A check of the archive."""

    kind: str
    at_ms: int
    state: str
    verdict: str
    share: str
    took_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillLine:
    cells: tuple[str, ...]
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillsView:
    headings: tuple[str, ...]
    drills: tuple[DrillLine, ...]
    """Newest first."""
    speed: LineChart | None
    recovery: LineChart | None
    """The time that restoring all records of now would take at the speed of each drill."""
    checks: tuple[CheckLine, ...]


def drills_view(proofs: Sequence[Proof], records: int) -> DrillsView:
    """`records` are those that the archive has now."""
    drills = sorted((proof for proof in proofs if proof.kind is ProofKind.DRILL), key=lambda one: one.finished_at_ms)
    speeds = [
        (drill.finished_at_ms, speed, f"{human_time(drill.finished_at_ms)}: {speed:,.0f} records/s", drill.sound)
        for drill in drills
        if (speed := speed_of(drill)) is not None
    ]
    times = [
        (drill.finished_at_ms, took, f"{human_time(drill.finished_at_ms)}: about {human_age(took * 1000)}", True)
        for drill in drills
        if (took := recovery_time_s(drill, records)) is not None
    ]
    checks = [proof for proof in proofs if proof.kind not in {ProofKind.DRILL, ProofKind.COPY}]
    return DrillsView(
        headings=tuple(TREND_HEADINGS),
        drills=tuple(
            DrillLine(cells=tuple(trend_cells(drill)), state="good" if drill.sound else "bad")
            for drill in reversed(drills)
        ),
        speed=line_chart(speeds, f"{max((value for _, value, _, _ in speeds), default=0):,.0f} records/s"),
        recovery=line_chart(times, human_age(max((value for _, value, _, _ in times), default=0) * 1000)),
        checks=tuple(_check(proof) for proof in sorted(checks, key=lambda one: one.finished_at_ms, reverse=True)),
    )


def _check(proof: Proof) -> CheckLine:
    share = proof.details.get("share")
    return CheckLine(
        kind="deep check" if proof.kind is ProofKind.DEEP_CHECK else "check",
        at_ms=proof.finished_at_ms,
        state="good" if proof.sound else "bad",
        verdict=proof.verdict,
        share=f"{share:.0%}" if isinstance(share, int | float) and not isinstance(share, bool) else "",
        took_ms=proof.finished_at_ms - proof.started_at_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthView:
    bytes: int
    records: int
    segments: int
    daily: float | None
    free_bytes: int | None
    days_left: float | None
    chart: LineChart | None
    added: tuple[tuple[int, str, int], ...]
    """The last runs that added bytes: end, verb and bytes, newest first."""
    price: float | None
    monthly: float | None
    monthly_in_a_year: float | None


def growth_view(facts: ArchiveFacts, runs: Sequence[RunSummary], price: float | None) -> GrowthView:
    """`price` is that of a GB for a month."""
    daily = daily_growth(facts)
    later = None if daily is None else facts.bytes + daily * 12 * _MONTH_DAYS
    sizes = [(run.finished_at, run.bytes or 0) for run in runs]
    added = [(run.finished_at, run.command or "run", run.bytes) for run in reversed(runs) if run.bytes]
    total = sum(size for _, size in sizes)
    return GrowthView(
        bytes=facts.bytes,
        records=facts.records,
        segments=facts.segments,
        daily=daily,
        free_bytes=facts.free_bytes,
        days_left=facts.free_bytes / daily if facts.free_bytes is not None and daily else None,
        chart=line_chart(growth_values(sizes), human_bytes(total)),
        added=tuple(added[:_SHOWN_RUNS]),
        price=price,
        monthly=None if price is None else facts.bytes / _GB * price,
        monthly_in_a_year=None if price is None or later is None else later / _GB * price,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LagLine:
    """How far the archive was behind the source at its last heartbeat."""

    topic: str
    partitions: int
    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationView:
    instances: tuple[EgressInstance, ...]
    beat_ms: int | None
    beat_age_ms: int | None
    stale: bool
    lags: tuple[LagLine, ...]
    behind: int
    partitions: int
    link: LinkStatus | None
    states: tuple[tuple[str, int], ...]
    error: str | None


def replication_view(
    instances: Sequence[EgressInstance],
    beats: Sequence[Heartbeat],
    ends: Mapping[PartitionId, int],
    names: Mapping[str, str],
    *,
    now_ms: int,
    stale_ms: int,
    link: LinkStatus | None = None,
    error: str | None = None,
) -> ReplicationView:
    """`beats` are newest first; `ends` and `names` are those of the archive's newest snapshot."""
    beat = beats[0] if beats else None
    behind: dict[str, list[int]] = {}
    for place, end in ({} if beat is None else beat.ends).items():
        mine = behind.setdefault(names.get(place.topic_id, place.topic_id), [0, 0])
        mine[0] += 1
        mine[1] += max(end - ends.get(place, 0), 0)
    lags = sorted(
        (LagLine(topic=topic, partitions=count, behind=lag) for topic, (count, lag) in behind.items()),
        key=lambda line: (-line.behind, line.topic),
    )
    age = None if beat is None else now_ms - beat.at_ms
    return ReplicationView(
        instances=tuple(instances),
        beat_ms=None if beat is None else beat.at_ms,
        beat_age_ms=age,
        stale=age is not None and age > stale_ms,
        lags=tuple(lags[:_TOPICS_SHOWN]),
        behind=sum(line.behind for line in lags),
        partitions=sum(line.partitions for line in lags),
        link=link,
        states=() if link is None else tuple(link.states.items()),
        error=error,
    )

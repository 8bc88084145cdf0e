"""The reports of replication: a state and a lag for each partition. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from maxbrod.compare.report import Difference
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, EXIT_REFUSED
from maxbrod.model import MENDABLE, GapReason
from maxbrod.replicate.heartbeat import Heartbeat, proven_at_ms
from maxbrod.replicate.link import State
from maxbrod.work.report import Report

if TYPE_CHECKING:
    from maxbrod.replicate.view import MirroredPartition


WELL: Final = frozenset({State.IN_STEP, State.CATCHING_UP, State.PAUSED, State.PROMOTED, State.OWN, State.SOURCE_GONE})
NEVER_ARCHIVED: Final = frozenset(GapReason) - {GapReason.COMPACTED, GapReason.PRUNED, GapReason.ERASED}
"""Reasons why records of the source may never have been in the archive. Those that were pruned have been there."""


_WHY: Final = {
    GapReason.RETENTION: "the source removed them before egress read them",
    GapReason.DELETED: "the source topic was deleted before egress read them",
    GapReason.TRUNCATED: "the source's log was truncated before egress read them",
    GapReason.COMPACTED: "compaction removed them at the source",
    GapReason.PRUNED: "they were pruned from the archive before they arrived here",
    GapReason.ERASED: "they were erased from the archive, because a person asked for it",
    GapReason.UNRECORDED: "the archive was converted from one that does not say why",
    GapReason.CORRUPT: "they were damaged at the source",
    GapReason.UNEXPLAINED: "the source's log had no batch for them, and nothing says why",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """Source offsets [first_offset, end_offset) that the archive does not have, so that no destination gets them."""

    first_offset: int
    end_offset: int
    reason: GapReason

    @property
    def offsets(self) -> int:
        return self.end_offset - self.first_offset

    @property
    def why(self) -> str:
        return _WHY[self.reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    source: str
    topic: str
    partition: int
    state: State
    why: str | None
    end: int | None
    """The first source offset that the destination lacks; None: unknown. With exact offsets it is the log end there, or
    was when the mirror was promoted."""
    archive_end: int
    source_end: int | None
    """The log end at the source when the newest heartbeat was taken; None: there is no heartbeat."""
    lag_records: int | None
    """Offsets that the source had then and the destination lacks; None: unknown, also if it is faulted: what it has
    may not be the source's."""
    lag_bytes: int
    """Archived bytes that the destination lacks."""
    lag_ms: int | None
    """How long ago the destination had everything that the source had; None: unknown."""
    lacking: tuple[Lacking, ...] = ()
    """Offsets that never arrive, because the archive does not have them. They do not count as lag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressReport(Report):
    published: ClassVar = ("states", "exit_code")
    link: str
    started_at_ms: int
    finished_at_ms: int
    version: int
    partitions: tuple[PartitionStatus, ...] = ()
    appended: int = 0
    """Offsets that this interval has appended; with `--offsets append` records."""
    groups: int = 0
    """Offsets of groups that this interval has committed."""
    appended_bytes: int = 0
    """Bytes of the archive whose records this interval has finished to append."""
    heartbeat_ms: int | None = None
    """When egress wrote the newest heartbeat that has arrived; None: there is none."""
    leads: bool = False
    """True if this instance leads: it makes topics ready, carries groups, and divides the partitions."""
    takeovers: int = 0
    """How many instances this one has known to be lost, whose work was taken over."""
    standby_for: str | None = None
    """The instance that leads, if it has given nothing to this one: nothing was done."""
    unmatched: tuple[str, ...] = ()
    """Names and patterns that no archived topic matches."""

    @property
    def exit_code(self) -> int:
        if self.standby_for is not None:
            return EXIT_INCOMPLETE
        return exit_code_of(self.partitions, self.unmatched)

    @property
    def states(self) -> dict[str, int]:
        return count_states(self.partitions)


def standing_by(link: str, leader: str | None, version: int, at_ms: int, *, takeovers: int) -> IngressReport:
    standby_for = leader or "another instance"
    return IngressReport(
        link=link,
        started_at_ms=at_ms,
        finished_at_ms=at_ms,
        version=version,
        takeovers=takeovers,
        standby_for=standby_for,
    )


def unmatched_line(word: str) -> str:
    return f"the archive has no topic {word} yet: nothing of it is mirrored"


def count_states(partitions: Iterable[PartitionStatus]) -> dict[str, int]:
    return dict(Counter(str(partition.state) for partition in partitions))


def exit_code_of(partitions: Sequence[PartitionStatus], unmatched: Sequence[str] = ()) -> int:
    """`unmatched`: what was asked for and is not there."""
    if any(partition.state is State.FAULTED for partition in partitions):
        return EXIT_REFUSED
    if unmatched:
        return EXIT_INCOMPLETE
    return EXIT_DONE if all(partition.state in WELL for partition in partitions) else EXIT_INCOMPLETE


def status_of(each: MirroredPartition, end: int | None, beats: Sequence[Heartbeat], now_ms: int) -> PartitionStatus:
    """The status of a partition whose log ends at `end`, or of one that was promoted. `beats` are newest first.

    The archive may be ahead of the newest heartbeat: what it has is lacking for certain.
    """
    end = end if each.promoted_end is None else each.promoted_end
    archive_end = each.extent.end
    source_end = beats[0].ends.get(each.id) if beats else None
    # What a faulted one has may not be the source's, wherever it ends.
    trusted = None if each.state is State.FAULTED or (each.state is State.PROMOTED and each.why) else end
    lag, proven_ms = None, None
    if trusted is not None:
        lag = None if source_end is None else max(source_end, archive_end, trusted) - trusted
        proven_ms = proven_at_ms(beats, each.id, trusted)
    return PartitionStatus(
        source=each.mirror.source.name,
        topic=each.where.topic,
        partition=each.where.partition,
        state=each.state,
        why=each.why,
        end=end,
        archive_end=archive_end,
        source_end=source_end,
        lag_records=lag,
        lag_bytes=each.bytes if end is None or end < archive_end else 0,
        lag_ms=None if proven_ms is None else max(now_ms - proven_ms, 0),
        # A later run may still mend what the destination has not passed: until then its state tells it.
        lacking=tuple(
            gap for gap in each.lacking if gap.reason not in MENDABLE or (end is not None and gap.end_offset <= end)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """One partition of the old source."""

    topic: str
    partition: int
    end: int
    """Its log end."""
    promoted_at: int | None
    """The offset up to which the mirror had the same log, or the link had appended this one; None: the archive has no
    record of a promotion."""
    new: int
    """Offsets that were written to the promoted mirror since, and that the archive has."""
    diverged: tuple[int, int] | None
    """Offsets [first, end) that the mirror never got. With `--offsets append` others have none of these records."""
    why: str | None = None
    """Why it cannot be continued, if it cannot."""
    begin: int | None = None
    """With `--offsets append`: the offset of the promoted topic that the way back begins with."""
    diverged_records: int | None = None
    """With `--offsets append`: how many committed records there are at the offsets `diverged`, not counting those that
    have come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailBackReport(Report):
    link: str
    partitions: tuple[WayBack, ...]
    equal: bool | None
    """False: records before the promotion differ. None: they were not compared,
    because a link that appends does not depend on it."""
    ready: bool
    """True if ingress may continue the topics now."""
    differences: tuple[Difference, ...] = ()
    """The first records before the promotion that differ. Their source is the archive."""
    notes: tuple[str, ...] = ()
    """What did not count when records were compared."""

    @property
    def exit_code(self) -> int:
        if not self.ready:
            return EXIT_REFUSED
        return EXIT_DONE if all(partition.diverged is None for partition in self.partitions) else EXIT_INCOMPLETE

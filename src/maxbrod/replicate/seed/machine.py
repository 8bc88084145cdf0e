"""What an ingress does next for one partition: a state machine without I/O, whose clock is an argument.

A *segment* here is an object of the tree. `next` is the first offset that the destination does not have. The states:

    INIT      waits, then reads the checkpoint and lists the tree
    IDLE      no segment has `next` or anything after it
    FIRST     no checkpoint: waits for segments before the lowest one that is known
    NEXT      passing: chooses the segment that has `next`, steps over offsets that never had a record
    LATE      a later segment is known, but none that has `next`, and it does not say that there never was a record in
              between: waits, and lists the tree after each wait
    LOST      passing: the last wait is over, the missing offsets are reported
    PROCESS   the records of a segment are being produced

Times are nanoseconds of one clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias


class Phase(StrEnum):
    INIT = "init"
    IDLE = "idle"
    FIRST = "first"
    LATE = "late"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Segment:
    """An object of the tree. Both offsets are inclusive."""

    start: int
    end: int
    level: int
    path: str = field(compare=False)
    size: int = field(default=0, compare=False)
    time_ns: int = field(default=0, compare=False)
    """When it was created, by the clock of the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    waits_ns: tuple[int, ...]
    """The waits for a late segment."""
    first_delay_ns: int
    poll_ns: int
    """How often the tree is listed again while nothing else happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What the tree holds of the partition, and what its writer knows about offsets without a segment."""

    segments: tuple[Segment, ...] = ()
    empty: tuple[tuple[int, int], ...] = ()
    """Ranges [first, second) that never had a record: they are not waited for."""
    first_offset: int | None = None
    """The first offset that the tree ever held, if its writer recorded it."""
    source_end: int | None = None
    """Where the source's log ended when the writer looked last, if it recorded that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a segment says about the offsets before it."""

    read_from: int
    """Its writer has read everything from here on. It is the segment's own start if it does not say."""
    deleted_from: int | None = None
    """The source had deleted everything from here up to `read_from`; None: it had not, or the segment does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """There is nothing to do until then, unless an event arrives."""

    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """List the tree again, then call `listed`. In the state INIT, read the checkpoint first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Produce the records of this segment from `first` on, then call `processed`."""

    segment: Segment
    first: int
    lost: tuple[int, int] | None = None
    """Offsets, both inclusive, that are given up for lost."""
    deleted: bool = False
    """Whether the source had deleted them before egress read them, so that nothing is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Look at what this segment says about the offsets before it, then call `looked`."""

    segment: Segment


Action: TypeAlias = Wait | List | Look | Process


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A segment that could not be read. It is tried again at `retry_ns`, or once the tree has another object there."""

    segment: Segment
    retry_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The state of one partition."""

    phase: Phase = Phase.INIT
    due_ns: int = 0
    """When the wait of INIT or LATE is over."""
    poll_ns: int = 0
    """When the tree is listed again."""
    listed_ns: int = 0
    """When it was listed last."""
    checkpoint: int | None = None
    """The last offset that the destination has."""
    listing: Listing = Listing()
    failures: Mapping[str, Failure] = field(default_factory=dict)
    """By path."""
    follows: Mapping[str, Before] = field(default_factory=dict)
    """By path, of segments that were looked at."""
    late_waits: int = 0
    """The number of waits for a late segment that have begun; 0 if none is late."""

    @property
    def next(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint + 1


def started(now_ns: int, delay_ns: int) -> Worker:
    """A worker that waits first, so that the last checkpoint of its predecessor can arrive."""
    return Worker(due_ns=now_ns + delay_ns)


def listed(worker: Worker, listing: Listing, checkpoint: int | None, now_ns: int, settings: Settings) -> Worker:
    """The worker after the tree was listed. A checkpoint never goes back."""
    known = [each for each in (worker.checkpoint, checkpoint) if each is not None]
    present = {segment.path: segment for segment in listing.segments}
    before = {segment.path: segment for segment in worker.listing.segments}
    return replace(
        worker,
        phase=Phase.IDLE if worker.phase is Phase.INIT else worker.phase,
        checkpoint=max(known, default=None),
        listing=listing,
        failures={path: each for path, each in worker.failures.items() if _same(present.get(path), each.segment)},
        follows={path: worker.follows[path] for path in worker.follows if _same(present.get(path), before.get(path))},
        poll_ns=now_ns + settings.poll_ns,
        listed_ns=now_ns,
    )


def arrived(worker: Worker, segment: Segment) -> Worker:
    """The worker after a notification about a new segment. While it starts, the listing to come has it."""
    if worker.phase is Phase.INIT or segment.end < worker.next:
        return worker
    others = (each for each in worker.listing.segments if each.path != segment.path)
    return replace(
        worker,
        listing=replace(worker.listing, segments=tuple(sorted((*others, segment)))),
        failures={path: each for path, each in worker.failures.items() if path != segment.path},
        follows={path: each for path, each in worker.follows.items() if path != segment.path},
    )


def looked(worker: Worker, segment: Segment, before: Before | None) -> Worker:
    """The worker after `Look`. None: the segment says nothing, or could not be read."""
    return replace(worker, follows={**worker.follows, segment.path: before or Before(read_from=segment.start)})


def removed(worker: Worker, path: str) -> Worker:
    """The worker after a notification that a segment is gone. The tree is listed: another one may cover its offsets."""
    segments = tuple(segment for segment in worker.listing.segments if segment.path != path)
    if worker.phase is Phase.INIT or len(segments) == len(worker.listing.segments):
        return worker
    return replace(worker, listing=replace(worker.listing, segments=segments), poll_ns=0)


def processed(worker: Worker, checkpoint: int) -> Worker:
    """The worker after a segment whose last record is at the destination."""
    return replace(worker, phase=Phase.IDLE, checkpoint=checkpoint, late_waits=0)


def unreadable(worker: Worker, segment: Segment, checkpoint: int | None, now_ns: int, settings: Settings) -> Worker:
    """The worker after a segment that was missing or damaged, whose records up to `checkpoint` were produced.

    The tree is listed at once: a compacted segment may cover it. If none does, it is as good as late.
    """
    waits = worker.late_waits if checkpoint == worker.checkpoint else 0
    failure = Failure(segment=segment, retry_ns=now_ns + settings.poll_ns)
    return replace(
        worker,
        phase=Phase.LATE if waits else Phase.IDLE,
        checkpoint=checkpoint,
        late_waits=waits,
        failures={**worker.failures, segment.path: failure},
        poll_ns=0,
    )


def interrupted(worker: Worker, checkpoint: int | None) -> Worker:
    """The worker after an error that is not the segment's, such as a destination that does not answer."""
    waits = worker.late_waits if checkpoint == worker.checkpoint else 0
    return replace(worker, phase=Phase.LATE if waits else Phase.IDLE, checkpoint=checkpoint, late_waits=waits)


def decide(worker: Worker, now_ns: int, settings: Settings) -> tuple[Worker, Action]:
    """What to do now, and the worker that has begun it."""
    if worker.phase is Phase.PROCESS:
        return worker, Wait(until_ns=now_ns + settings.poll_ns)
    if worker.phase is Phase.INIT:
        return (worker, Wait(until_ns=worker.due_ns)) if now_ns < worker.due_ns else (worker, List())
    if now_ns >= worker.poll_ns:
        return replace(worker, poll_ns=now_ns + settings.poll_ns), List()
    ahead = sorted(segment for segment in worker.listing.segments if segment.end >= worker.next)
    if not ahead:
        return replace(worker, phase=Phase.IDLE, late_waits=0), Wait(until_ns=worker.poll_ns)
    wanted = _after_empty(worker.next, worker.listing.empty)
    if worker.checkpoint is None:
        wanted = ahead[0].start
        due_ns = ahead[0].time_ns + settings.first_delay_ns
        first = worker.listing.first_offset
        if worker.listed_ns < due_ns and (first is None or wanted > first):
            if now_ns >= due_ns:  # the last look: no notification may have said that an earlier one is there
                return replace(worker, phase=Phase.FIRST), List()
            return replace(worker, phase=Phase.FIRST), Wait(until_ns=min(due_ns, worker.poll_ns))
    return _next(worker, wanted, ahead, now_ns, settings)


def _next(
    worker: Worker, wanted: int, ahead: Sequence[Segment], now_ns: int, settings: Settings
) -> tuple[Worker, Action]:
    readable = [each for each in ahead if not _failed(worker, each, now_ns)]
    if best := _best(readable, wanted):
        return replace(worker, phase=Phase.PROCESS), Process(segment=best, first=wanted)
    later = _best(readable, min((each.start for each in readable if each.start > wanted), default=-1))
    if later is None:  # the newest segment cannot be read: it is tried again, and nothing is given up
        return replace(worker, phase=Phase.IDLE, late_waits=0), Wait(until_ns=worker.poll_ns)
    if later.path not in worker.follows:
        return worker, Look(segment=later)
    before = worker.follows[later.path]
    if before.read_from <= wanted:  # its writer has read everything in between: there never was a record
        return replace(worker, phase=Phase.PROCESS), Process(segment=later, first=later.start)
    missing = (wanted, before.read_from - 1)
    if before.deleted_from is not None and before.deleted_from <= wanted:  # no segment will ever have them
        process = Process(segment=later, first=later.start, lost=missing, deleted=True)
        return replace(worker, phase=Phase.PROCESS), process
    return _late(worker, missing, later, now_ns, settings)


def _late(
    worker: Worker, missing: tuple[int, int], later: Segment, now_ns: int, settings: Settings
) -> tuple[Worker, Action]:
    if not worker.late_waits:
        begun = replace(worker, phase=Phase.LATE, late_waits=1, due_ns=now_ns + settings.waits_ns[0])
        return begun, Wait(until_ns=min(begun.due_ns, begun.poll_ns))
    worker = replace(worker, phase=Phase.LATE)
    if now_ns < worker.due_ns:
        return worker, Wait(until_ns=min(worker.due_ns, worker.poll_ns))
    polled = replace(worker, late_waits=worker.late_waits + 1, poll_ns=now_ns + settings.poll_ns)
    if worker.late_waits < len(settings.waits_ns):
        return replace(polled, due_ns=worker.due_ns + settings.waits_ns[worker.late_waits]), List()
    if worker.late_waits == len(settings.waits_ns):
        return polled, List()  # the last look
    return replace(worker, phase=Phase.PROCESS), Process(segment=later, first=later.start, lost=missing)


def _failed(worker: Worker, segment: Segment, now_ns: int) -> bool:
    failure = worker.failures.get(segment.path)
    return failure is not None and now_ns < failure.retry_ns


def _same(found: Segment | None, known: Segment | None) -> bool:
    """Whether the tree still has the object that was known."""
    if found is None or known is None:
        return False
    return (found.size, found.time_ns) == (known.size, known.time_ns)


def _best(segments: Iterable[Segment], offset: int) -> Segment | None:
    """The segment to read for an offset: the one with the fewest records before it, then the longest."""
    return max(
        (segment for segment in segments if segment.start <= offset <= segment.end),
        key=lambda each: (each.start, each.end, each.level),
        default=None,
    )


def _after_empty(offset: int, empty: Iterable[tuple[int, int]]) -> int:
    """The first offset from this one on that may have a record. The ranges rise."""
    for base, end in empty:
        if base <= offset < end:
            offset = end
    return offset

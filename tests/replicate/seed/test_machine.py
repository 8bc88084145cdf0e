"""What a worker does next, without Kafka, a store or a clock: every state, and random worlds against an oracle."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.replicate.seed import machine
from maxbrod.replicate.seed.machine import (
    Action,
    Before,
    List,
    Listing,
    Look,
    Phase,
    Process,
    Segment,
    Settings,
    Wait,
    Worker,
)
from maxbrod.replicate.seed.run import doubling_waits

SETTINGS = Settings(waits_ns=doubling_waits(700, 3), first_delay_ns=1000, poll_ns=10_000)  # 100, 200, 400
FAR = replace(SETTINGS, poll_ns=10**12)


def segment(start: int, end: int, *, level: int = 0, time_ns: int = 0, size: int = 1) -> Segment:
    path = f"data/r/t/0/{level}/{start:020d}-{end:020d}"
    return Segment(start=start, end=end, level=level, path=path, size=size, time_ns=time_ns)


def listing(*segments: Segment, **known: object) -> Listing:
    return Listing(segments=tuple(sorted(segments)), **known)  # type: ignore[arg-type]


def ready(checkpoint: int | None, *segments: Segment, now: int = 0, to: Settings = FAR, **known: object) -> Worker:
    return machine.listed(machine.started(0, 0), listing(*segments, **known), checkpoint, now, to)


def decide(worker: Worker, now: int, to: Settings, follows: dict[str, int] | None = None) -> tuple[Worker, Action]:
    """`machine.decide`, and what segments say about the offsets before them, by path."""
    worker, action = machine.decide(worker, now, to)
    if isinstance(action, Look):
        worker = machine.looked(worker, action.segment, _before((follows or {}).get(action.segment.path)))
        worker, action = machine.decide(worker, now, to)
    return worker, action


def _before(read_from: int | None) -> Before | None:
    return None if read_from is None else Before(read_from=read_from)


# INIT


def test_a_new_worker_waits_before_it_reads_the_checkpoint() -> None:
    worker = machine.started(50, 10)
    assert decide(worker, 59, FAR)[1] == Wait(until_ns=60)
    assert decide(worker, 60, FAR)[1] == List()


def test_events_before_the_first_listing_are_left_to_the_listing() -> None:
    worker = machine.arrived(machine.started(0, 10), segment(0, 9))
    assert worker.listing.segments == ()


# FIRST


def test_without_a_checkpoint_the_first_segment_is_waited_for() -> None:
    worker = ready(None, segment(10, 19, time_ns=500))
    worker, action = decide(worker, 600, FAR)
    assert (worker.phase, action) == (Phase.FIRST, Wait(until_ns=1500))
    worker = machine.arrived(worker, segment(5, 9, time_ns=700))
    worker, action = decide(worker, 1600, FAR)  # the delay counts from the segment that is first now
    assert action == Wait(until_ns=1700)
    worker, action = decide(worker, 1700, FAR)
    assert action == List()  # an earlier one may be there without a notification
    worker = machine.listed(worker, worker.listing, None, 1700, FAR)
    assert decide(worker, 1700, FAR)[1] == Process(segment=segment(5, 9), first=5)


def test_a_known_first_offset_needs_no_wait() -> None:
    worker = ready(None, segment(10, 19, time_ns=500), first_offset=10)
    assert decide(worker, 600, FAR)[1] == Process(segment=segment(10, 19), first=10)


def test_a_damaged_first_segment_is_late_and_not_skipped() -> None:
    worker = ready(None, segment(0, 9), segment(10, 19), now=5000)
    worker, action = decide(worker, 5000, FAR)
    assert action == Process(segment=segment(0, 9), first=0)
    worker = machine.unreadable(worker, segment(0, 9), None, 5000, FAR)
    worker = machine.listed(worker, worker.listing, None, 5000, FAR)
    worker, action = decide(worker, 5000, FAR)
    assert (worker.phase, action) == (Phase.LATE, Wait(until_ns=5100))


# NEXT and PROCESS


def test_processing_goes_on_after_the_checkpoint_within_a_segment() -> None:
    worker, action = decide(ready(14, segment(0, 9), segment(10, 19)), 0, FAR)
    assert action == Process(segment=segment(10, 19), first=15)
    assert worker.phase is Phase.PROCESS


def test_nothing_else_begins_while_a_segment_is_processed() -> None:
    worker, _ = decide(ready(9, segment(10, 19)), 0, FAR)
    assert isinstance(decide(worker, 0, FAR)[1], Wait)


def test_overlapping_segments_are_read_from_the_nearest_start() -> None:
    worker = ready(14, segment(0, 19), segment(10, 29), segment(12, 16), segment(12, 25, level=1))
    assert decide(worker, 0, FAR)[1] == Process(segment=segment(12, 25, level=1), first=15)


def test_the_tree_is_listed_again_when_nothing_happens() -> None:
    worker, action = decide(ready(9, now=0, to=SETTINGS), 9_999, SETTINGS)
    assert (worker.phase, action) == (Phase.IDLE, Wait(until_ns=10_000))
    assert decide(worker, 10_000, SETTINGS)[1] == List()


# LATE and LOST


def test_a_missing_segment_is_waited_for_and_then_given_up() -> None:
    worker = ready(9, segment(20, 29))
    times: list[int] = []
    now, action = 0, decide(worker, 0, FAR)[1]
    while True:
        worker, action = decide(worker, now, FAR)
        if isinstance(action, Wait):
            now = action.until_ns
        elif isinstance(action, List):
            times.append(now)
            worker = machine.listed(worker, worker.listing, 9, now, FAR)
        else:
            break
    assert times == [100, 300, 700]  # a listing after each wait
    assert now == 700  # the sum of all waits, exactly
    assert action == Process(segment=segment(20, 29), first=20, lost=(10, 19))


def test_a_late_segment_that_arrives_is_processed_at_once() -> None:
    worker, _ = decide(ready(9, segment(20, 29)), 0, FAR)
    assert worker.phase is Phase.LATE
    worker, action = decide(machine.arrived(worker, segment(10, 19)), 50, FAR)
    assert action == Process(segment=segment(10, 19), first=10)
    worker = machine.processed(worker, 19)
    assert worker.late_waits == 0
    assert decide(worker, 60, FAR)[1] == Process(segment=segment(20, 29), first=20)


def test_a_late_segment_without_a_notification_is_found_by_polling() -> None:
    """Not only after a wait: the last wait takes half a day by default."""
    late = replace(SETTINGS, waits_ns=(1_000_000,))
    worker, action = decide(ready(9, segment(20, 29), to=late), 0, late)
    assert action == Wait(until_ns=10_000)
    worker, action = decide(worker, 10_000, late)
    assert action == List()
    worker = machine.listed(worker, listing(segment(10, 19), segment(20, 29)), 9, 10_000, late)
    assert decide(worker, 10_000, late)[1] == Process(segment=segment(10, 19), first=10)


def test_a_hole_that_is_known_to_be_none_costs_no_wait() -> None:
    worker = ready(9, segment(20, 29), empty=((2, 4), (10, 15), (15, 20), (40, 50)))
    assert decide(worker, 0, FAR)[1] == Process(segment=segment(20, 29), first=20)


def test_a_segment_that_says_what_it_follows_costs_no_wait() -> None:
    """Its writer was killed before it could record the hole elsewhere, or the record of it has not arrived yet."""
    after = segment(13, 19)
    worker = ready(9, segment(0, 9), after)
    assert machine.decide(worker, 0, FAR)[1] == Look(segment=after)
    assert decide(worker, 0, FAR, {after.path: 10})[1] == Process(segment=after, first=13)
    assert isinstance(decide(worker, 0, FAR, {after.path: 11})[1], Wait)
    assert isinstance(decide(worker, 0, FAR, {})[1], Wait)


def test_only_what_no_segment_accounts_for_is_lost() -> None:
    after = segment(13, 19)
    worker = machine.looked(ready(9, after), after, Before(read_from=11))
    for now in (0, 100, 300, 700, 700):
        worker, action = machine.decide(worker, now, FAR)
    assert action == Process(segment=after, first=13, lost=(10, 10))


def test_offsets_that_the_source_had_deleted_are_lost_without_a_wait() -> None:
    after = segment(13, 19)
    known = machine.looked(ready(9, after), after, Before(read_from=12, deleted_from=10))
    assert machine.decide(known, 0, FAR)[1] == Process(segment=after, first=13, lost=(10, 11), deleted=True)
    later = machine.looked(ready(8, after), after, Before(read_from=12, deleted_from=10))
    assert isinstance(machine.decide(later, 0, FAR)[1], Wait), "the segment with offset 9 may still arrive"


def test_a_segment_that_was_replaced_is_looked_at_again() -> None:
    half, whole = segment(13, 19, size=1), segment(13, 19, size=2)
    worker, _ = decide(ready(9, half), 0, FAR)
    assert isinstance(machine.decide(worker, 1, FAR)[1], Wait)
    for seen in (machine.arrived(worker, whole), machine.listed(worker, listing(whole), 9, 1, FAR)):
        assert machine.decide(seen, 1, FAR)[1] == Look(segment=whole)


def test_only_the_unknown_part_of_a_hole_is_waited_for() -> None:
    worker = ready(9, segment(20, 29), empty=((10, 15),))
    worker, _ = decide(worker, 0, replace(FAR, waits_ns=(1,)))
    assert worker.phase is Phase.LATE
    for _ in range(2):
        worker, action = decide(worker, 1, replace(FAR, waits_ns=(1,)))
    assert action == Process(segment=segment(20, 29), first=20, lost=(15, 19))


# Segments that vanish or cannot be read


def test_a_removed_segment_is_replaced_by_the_compacted_one_that_covers_it() -> None:
    worker, action = decide(ready(9, segment(10, 19)), 0, FAR)
    worker = machine.unreadable(worker, segment(10, 19), 9, 5, FAR)  # it was deleted before it was opened
    worker, action = decide(worker, 5, FAR)
    assert action == List()
    worker = machine.listed(worker, listing(segment(0, 29, level=1)), 9, 5, FAR)
    assert decide(worker, 5, FAR)[1] == Process(segment=segment(0, 29, level=1), first=10)


def test_a_notification_about_a_removed_segment_lists_the_tree() -> None:
    worker = machine.removed(ready(9, segment(10, 19), segment(20, 29)), segment(10, 19).path)
    assert decide(worker, 5, FAR)[1] == List()
    unchanged = ready(9, segment(10, 19))
    assert machine.removed(unchanged, "other") == unchanged


def test_a_damaged_segment_is_not_read_in_a_loop_and_is_lost_in_the_end() -> None:
    """The original retries it for ever: the range is never declared lost."""
    world = World(segments=[segment(0, 9), segment(10, 19), segment(20, 29)], broken={segment(10, 19).path})
    world.run(checkpoint=-1, until=100_000)
    assert world.produced == [*range(10), *range(20, 30)]
    assert world.lost == [(10, 19)]
    assert world.reads <= 5


def test_a_half_copied_segment_is_read_once_it_is_whole() -> None:
    half, whole = segment(10, 19, size=1), segment(10, 19, size=2)
    worker, _ = decide(ready(9, half, to=SETTINGS), 0, SETTINGS)
    worker = machine.unreadable(worker, half, 12, 0, SETTINGS)  # its first records were sound
    worker, action = decide(worker, 0, SETTINGS)
    assert action == List()
    worker = machine.listed(worker, listing(half), 12, 0, SETTINGS)
    assert isinstance(decide(worker, 1, SETTINGS)[1], Wait)
    worker = machine.listed(worker, listing(whole), 12, 2, SETTINGS)
    assert decide(worker, 2, SETTINGS)[1] == Process(segment=whole, first=13)


def test_the_newest_segment_is_never_given_up() -> None:
    world = World(segments=[segment(0, 9), segment(10, 19)], broken={segment(10, 19).path})
    world.run(checkpoint=-1, until=1_000_000)
    assert world.produced == [*range(10)]
    assert world.lost == []
    world.broken.clear()
    world.run(checkpoint=9, until=world.now + 100_000)
    assert world.produced == [*range(20)]


def test_a_checkpoint_never_goes_back() -> None:
    worker = machine.listed(ready(19, segment(10, 29)), listing(segment(10, 29)), 5, 0, FAR)
    assert decide(worker, 0, FAR)[1] == Process(segment=segment(10, 29), first=20)


# Random worlds


@dataclass
class World:
    """A tree to which segments arrive, some of them noticed, and a destination. Time is simulated."""

    segments: list[Segment]
    arrivals: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """When a segment appears (at once by default), and whether a notification says so."""
    broken: set[str] = field(default_factory=set)
    empty: tuple[tuple[int, int], ...] = ()
    produced: list[int] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    reads: int = 0
    now: int = 0

    def there(self) -> list[Segment]:
        return [each for each in self.segments if self.arrivals.get(each.path, (0, True))[0] <= self.now]

    def run(self, *, checkpoint: int | None, until: int) -> None:
        checkpoint = None if checkpoint == -1 else checkpoint
        worker = machine.started(self.now, 0)
        last = checkpoint
        noticed = {each.path for each in self.there()}
        while self.now < until:
            for each in self.there():
                if each.path not in noticed and self.arrivals[each.path][1]:
                    worker = machine.arrived(worker, each)
                noticed.add(each.path)
            worker, action = decide(worker, self.now, SETTINGS)
            if isinstance(action, List):
                worker = machine.listed(worker, listing(*self.there(), empty=self.empty), last, self.now, SETTINGS)
            elif isinstance(action, Wait):
                coming = [at for at, told in self.arrivals.values() if told and at > self.now]
                self.now = min([action.until_ns, *coming])
            elif isinstance(action, Process):
                self.reads += 1
                if action.segment.path in self.broken:
                    worker = machine.unreadable(worker, action.segment, last, self.now, SETTINGS)
                    continue
                if action.lost is not None:
                    self.lost.append(action.lost)
                self.produced += range(action.first, action.segment.end + 1)
                last = action.segment.end
                worker = machine.processed(worker, last)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A partition cut into segments, at several levels, overlapping; some arrive late, unnoticed, or never."""
    cuts = sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=8)))
    edges = [0, *cuts]
    segments = [segment(a, b - 1) for a, b in itertools.pairwise(edges)]
    for _ in range(draw(st.integers(0, 3))):
        first = draw(st.integers(0, len(segments) - 1))
        last = draw(st.integers(first, len(segments) - 1))
        start, end = segments[first].start, segments[last].end
        segments.append(segment(start, end, level=draw(st.integers(1, 3))))
    segments = list({each.path: each for each in segments}.values())
    arrivals = {
        each.path: (draw(st.sampled_from([0, 0, 50, 350, 5_000, 10**9])), draw(st.booleans())) for each in segments
    }
    return World(segments=segments, arrivals=arrivals)


@settings(max_examples=150)
@given(worlds())
def test_records_come_in_order_and_once_and_only_what_is_reported_is_lost(world: World) -> None:
    world.run(checkpoint=-1, until=40_000)
    assert world.produced == sorted(set(world.produced))
    arrived = {
        o for each in world.segments if world.arrivals[each.path][0] < 40_000 for o in range(each.start, each.end + 1)
    }
    given_up = {offset for first, last in world.lost for offset in range(first, last + 1)}
    assert given_up.isdisjoint(world.produced)
    assert set(world.produced) <= arrived
    if world.produced:
        first, last = world.produced[0], world.produced[-1]
        assert set(range(first, last + 1)) == set(world.produced) | given_up
        # Whatever arrived after a hole is produced once the hole is given up.
        assert not [offset for offset in arrived if offset > last]


@settings(max_examples=75)
@given(worlds())
def test_nothing_is_lost_if_everything_arrives_before_the_waits_are_over(world: World) -> None:
    world.arrivals = {path: (min(at, 350), told) for path, (at, told) in world.arrivals.items()}
    world.run(checkpoint=-1, until=40_000)
    assert world.lost == []
    assert world.produced == list(range(max(each.end for each in world.segments) + 1))

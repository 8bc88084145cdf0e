"""Slots: cron expressions at changes of the clock, and the search for the newest one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.schedule.slots import CronSlots, EverySlots, jitter_of, parse_cron

BERLIN = "Europe/Berlin"
DAY_MS = 86_400_000
CHANGES = [  # within a day of a change of some clock, and an ordinary day
    (BERLIN, "2026-03-28T12:00:00+00:00"),
    (BERLIN, "2026-10-24T12:00:00+00:00"),
    ("America/New_York", "2026-03-07T12:00:00+00:00"),
    ("America/New_York", "2026-10-31T12:00:00+00:00"),
    ("Australia/Lord_Howe", "2026-04-04T00:00:00+00:00"),  # half an hour
    ("UTC", "2026-06-01T00:00:00+00:00"),
]
EXPRESSIONS = ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 2 * * *", "0,30 1-3 * * *", "15 */2 * * *", "0 0 1 * *"]


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def between(slots: CronSlots, after: str, until: str) -> list[str]:
    found, at = [], ms(after)
    while (slot := slots.after(at)) is not None and slot <= ms(until):
        found.append(datetime.fromtimestamp(slot / 1000, UTC).isoformat())
        at = slot
    return found


def test_a_time_that_the_clock_skips_comes_right_after_the_gap() -> None:
    """On 2026-03-29 in Berlin, 02:00 to 03:00 does not exist: 03:00 is 01:00 UTC."""
    slots = parse_cron("30 2 * * *", BERLIN)
    assert between(slots, "2026-03-28T00:00:00+00:00", "2026-03-30T12:00:00+00:00") == [
        "2026-03-28T01:30:00+00:00",
        "2026-03-29T01:00:00+00:00",
        "2026-03-30T00:30:00+00:00",
    ]


def test_a_fixed_time_that_comes_twice_is_one_slot() -> None:
    """On 2026-10-25 in Berlin, 02:30 is 00:30 and 01:30 UTC."""
    slots = parse_cron("30 2 * * *", BERLIN)
    assert between(slots, "2026-10-24T12:00:00+00:00", "2026-10-26T12:00:00+00:00") == [
        "2026-10-25T00:30:00+00:00",
        "2026-10-26T01:30:00+00:00",
    ]
    # Also if the search begins between the two.
    assert slots.after(ms("2026-10-25T01:00:00+00:00")) == ms("2026-10-26T01:30:00+00:00")


def test_every_hour_goes_on_by_elapsed_time_when_clocks_are_put_back() -> None:
    slots = parse_cron("0 * * * *", BERLIN)
    found = between(slots, "2026-10-24T23:30:00+00:00", "2026-10-25T03:30:00+00:00")
    assert found == [f"2026-10-25T0{hour}:00:00+00:00" for hour in range(4)]


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(CHANGES),
    st.integers(0, 2 * DAY_MS),
    st.integers(0, 40 * DAY_MS),
)
def test_the_newest_slot_is_the_last_one_that_a_walk_through_all_of_them_meets(
    expression: str, change: tuple[str, str], begin: int, length: int
) -> None:
    zone, day = change
    slots = parse_cron(expression, zone)
    after = ms(day) + begin
    until = after + (length if expression not in EXPRESSIONS[:2] else length // 20)
    walked, at = None, after
    while (slot := slots.after(at)) is not None and slot <= until:
        assert slot > at
        walked = at = slot
    assert slots.newest(after, until) == walked


def test_a_year_without_a_scheduler_is_not_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = parse_cron("* * * * *", "UTC")
    walked = [0]
    real = CronSlots._from

    def counted(self: CronSlots, after_ms: int) -> object:
        for slot in real(self, after_ms):
            walked[0] += 1
            yield slot

    monkeypatch.setattr(CronSlots, "_from", counted)
    now = ms("2026-06-01T12:00:30+00:00")
    assert slots.newest(now - 365 * DAY_MS, now) == ms("2026-06-01T12:00:00+00:00")
    assert walked[0] < 1000


@given(st.integers(1, 10**9), st.integers(0, 2**42), st.integers(0, 2**42))
def test_slots_of_an_interval_are_its_multiples(every: int, after: int, length: int) -> None:
    slots = EverySlots(every)
    following = slots.after(after)
    assert following is not None
    assert following % every == 0
    assert after < following <= after + every
    newest = slots.newest(after, after + length)
    assert newest is None if following > after + length else newest is not None and after + length - newest < every


@pytest.mark.parametrize(
    ("expression", "zone", "why"),
    [
        ("* * * * * *", "UTC", "five fields"),
        ("0 3 * *", "UTC", "five fields"),
        ("61 3 * * *", "UTC", "bad minute"),
        ("0 3 31 2 *", "UTC", "no cron expression"),
        ("0 3 * * *", "Europe/Prag", "no such time zone"),
        ("0 3 * * *", "../../etc/passwd", "no such time zone"),
    ],
)
def test_a_wrong_expression_is_refused(expression: str, zone: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_cron(expression, zone)


@given(st.text(min_size=1), st.integers(0, 2**42), st.integers(0, 3_600_000))
def test_jitter_is_the_same_for_one_slot_and_within_its_bound(name: str, slot: int, jitter: int) -> None:
    drawn = jitter_of(name, slot, jitter)
    assert 0 <= drawn <= jitter
    assert drawn == jitter_of(name, slot, jitter)


def test_jitter_differs_between_jobs_and_slots() -> None:
    drawn = {jitter_of(name, slot, 3_600_000) for name in "abcdefgh" for slot in range(8)}
    assert len(drawn) > 60

"""What is told, and when: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.schedule.messages.alarm import (
    WELL,
    JobMessage,
    MessagePace,
    Trouble,
    find_news,
    still_in_trouble,
    trouble_of,
)
from maxbrod.schedule.state import JobOutcome, JobState
from maxbrod.sections import MessagesConfig

HOUR = 3_600_000
NOW = 1_795_000_000_000
GOOD = JobOutcome(slot_ms=None, started_ms=NOW, finished_ms=NOW, exit_code=0, verdict="complete")
BAD = replace(GOOD, exit_code=1, verdict="failed", error="the broker is gone", hint="look")
NEW = JobState(verb="backup", since_ms=NOW)


def settings(**changes: Any) -> MessagesConfig:
    return MessagesConfig.model_validate({"group_for": 30, "apart": 300, **changes})


def test_people_are_told_after_so_many_failures_in_a_row() -> None:
    config = settings(after_failures=3)
    state = NEW
    told = []
    for outcome in (BAD, BAD, GOOD, BAD, BAD, BAD):
        state = state.ended(outcome)
        told.append(bool(find_news({"j": state}, config, NOW)))
    assert told == [False, False, False, False, False, True]


def test_people_are_told_if_a_job_has_not_succeeded_for_long_even_if_it_never_began() -> None:
    config = settings(no_success_for="26h")
    assert trouble_of(NEW, config, NOW + 26 * HOUR) is None
    assert trouble_of(NEW, config, NOW + 26 * HOUR + 1) is Trouble.OVERDUE
    succeeded = NEW.ended(replace(GOOD, finished_ms=NOW + 10 * HOUR))
    assert trouble_of(succeeded, config, NOW + 30 * HOUR) is None
    assert trouble_of(succeeded, config, NOW + 37 * HOUR) is Trouble.OVERDUE


def test_what_people_know_is_told_again_only_after_a_while() -> None:
    config = settings(repeat_every="24h")
    known = replace(NEW.ended(BAD), told="failed", told_ms=NOW)
    assert find_news({"j": known}, config, NOW + 23 * HOUR) == ()
    assert len(find_news({"j": known}, config, NOW + 24 * HOUR)) == 1


def test_the_end_of_a_trouble_is_told_once() -> None:
    known = replace(NEW.ended(BAD), told="failed", told_ms=NOW).ended(GOOD)
    (news,) = find_news({"j": known}, settings(), NOW)
    assert news.state == WELL
    assert find_news({"j": replace(known, told=None)}, settings(), NOW) == ()


def test_a_failure_that_is_not_told_yet_does_not_count_as_well() -> None:
    config = settings(after_failures=2)
    known = replace(NEW.ended(BAD).ended(BAD), told="failed", told_ms=NOW)
    assert find_news({"j": known.ended(GOOD).ended(BAD)}, config, NOW) == ()


def test_a_message_says_whether_all_is_well() -> None:
    states = {
        "a": replace(NEW.ended(GOOD), told="failed", told_ms=NOW),
        "b": replace(NEW.ended(BAD), told="failed", told_ms=NOW),
    }
    news = find_news(states, settings(), NOW)
    still = still_in_trouble(states, news, settings(), NOW)
    message = JobMessage(archive="s3://b/k", host="h", at_ms=NOW, news=news, still=still)
    assert (message.all_well, still) == (False, ("b",))
    assert "a well again, 1 job not" in message.title
    assert replace(message, still=()).all_well
    failed = find_news({"b": NEW.ended(BAD)}, settings(), NOW)
    text = replace(message, news=failed, still=()).text
    assert all(word in text for word in ("exit code 1", "the broker is gone", "look", "s3://b/k", "no success"))


def test_what_comes_soon_after_is_told_together_and_messages_keep_a_distance() -> None:
    pace, config = MessagePace(), settings()
    sent = []
    for second in range(0, 1200, 10):
        now = NOW + second * 1000
        if pace.may_send(any_news=True, settings=config, now_ms=now):
            sent.append(second)
            pace.sent(now)
    assert sent == [30, 330, 630, 930]


def test_news_that_are_none_any_more_are_not_told() -> None:
    pace, config = MessagePace(), settings()
    assert not pace.may_send(any_news=True, settings=config, now_ms=NOW)
    assert not pace.may_send(any_news=False, settings=config, now_ms=NOW + 20_000)
    assert not pace.may_send(any_news=True, settings=config, now_ms=NOW + 40_000)


@given(st.lists(st.integers(-HOUR, HOUR), max_size=80))
def test_a_clock_that_jumps_does_not_silence_messages(jumps: list[int]) -> None:
    pace, config, now = MessagePace(), settings(), NOW
    for jump in jumps:
        now += jump
        if pace.may_send(any_news=True, settings=config, now_ms=now):
            pace.sent(now)
    times = [now + second * 1000 for second in range(0, 700, 5)]
    assert any(pace.may_send(any_news=True, settings=config, now_ms=at) for at in times)

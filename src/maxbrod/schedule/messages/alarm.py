"""Decides what is to be told, and when. Pure: the states of the jobs, the settings and the time go in.

A job is in trouble if it has failed several times in a row, or has not succeeded for long. Each trouble is told once,
and again after a while if it lasts; its end is told, too. What comes within a short time is told together, and messages
keep a distance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from maxbrod.text import counted, human_age, human_time

if TYPE_CHECKING:
    from maxbrod.schedule.state import JobState
    from maxbrod.sections import MessagesConfig


class Trouble(StrEnum):
    FAILED = "failed"
    OVERDUE = "overdue"


WELL = "well"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNews:
    """What is to be told of one job."""

    job: str
    verb: str
    state: str
    """failed, overdue or well."""
    text: str
    exit_code: int | None
    failures: int
    last_success_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMessage:
    """One message: its news, and what else is in trouble that people know of already."""

    archive: str
    host: str
    at_ms: int
    news: tuple[JobNews, ...]
    still: tuple[str, ...] = ()

    @property
    def all_well(self) -> bool:
        return not self.still and all(item.state == WELL for item in self.news)

    @property
    def title(self) -> str:
        bad = [item.job for item in self.news if item.state != WELL]
        if self.all_well:
            return "maxbrod: all is well again"
        if not bad:
            names = ", ".join(item.job for item in self.news)
            return f"maxbrod: {names} well again, {counted(len(self.still), 'job')} not"
        return f"maxbrod: {bad[0]} needs attention" if len(bad) == 1 else f"maxbrod: {len(bad)} jobs need attention"

    @property
    def text(self) -> str:
        lines = [f"{item.job} ({item.verb}): {item.text}" for item in self.news]
        if self.still:
            lines.append(f"still in trouble: {', '.join(self.still)}")
        return "\n".join([*lines, f"archive {self.archive}, on {self.host}, {human_time(self.at_ms)}"])


def trouble_of(state: JobState, settings: MessagesConfig, now_ms: int) -> Trouble | None:
    if state.failures >= settings.after_failures:
        return Trouble.FAILED
    since_ms = state.since_ms if state.last_success_ms is None else state.last_success_ms
    if settings.no_success_for is not None and now_ms - since_ms > settings.no_success_for * 1000:
        return Trouble.OVERDUE
    return None


def find_news(states: Mapping[str, JobState], settings: MessagesConfig, now_ms: int) -> tuple[JobNews, ...]:
    """Return what people do not know yet, or are to be reminded of."""
    return tuple(news for name, state in states.items() if (news := _news(name, state, settings, now_ms)) is not None)


def _news(name: str, state: JobState, settings: MessagesConfig, now_ms: int) -> JobNews | None:
    trouble = trouble_of(state, settings, now_ms)
    if trouble is None:
        # After a failure that is not told yet, it is too early to say that all is well.
        return None if state.told is None or state.failures else _tell(name, state, WELL, "well again", now_ms)
    reminded = state.told_ms is not None and now_ms - state.told_ms >= settings.repeat_every * 1000
    if state.told == trouble and not reminded:
        return None
    return _tell(name, state, trouble, _words(state, trouble, now_ms), now_ms)


def _tell(name: str, state: JobState, what: str, words: str, now_ms: int) -> JobNews:
    del now_ms
    return JobNews(
        job=name,
        verb=state.verb,
        state=str(what),
        text=words,
        exit_code=None if state.last is None else state.last.exit_code,
        failures=state.failures,
        last_success_ms=state.last_success_ms,
    )


def _words(state: JobState, trouble: Trouble, now_ms: int) -> str:
    last = state.last
    parts = []
    if trouble is Trouble.FAILED:
        parts.append(f"failed, {state.failures:,} in a row" if state.failures > 1 else "failed")
        if last is not None:
            parts.append(f"exit code {last.exit_code} ({last.verdict})")
    if state.last_success_ms is None:
        parts.append(f"no success since it was scheduled, {human_age(now_ms - state.since_ms)} ago")
    else:
        ago = human_age(now_ms - state.last_success_ms)
        parts.append(f"last success {human_time(state.last_success_ms)}, {ago} ago")
    why = "" if last is None or last.error is None else f": {last.error}"
    hint = "" if last is None or last.hint is None or not why else f" ({last.hint})"
    return f"{'; '.join(parts)}{why}{hint}"


def still_in_trouble(
    states: Mapping[str, JobState], news: Iterable[JobNews], settings: MessagesConfig, now_ms: int
) -> tuple[str, ...]:
    """Return the jobs in trouble that these news are not about."""
    about = {item.job for item in news}
    return tuple(
        name
        for name, state in states.items()
        if name not in about and (state.told is not None or trouble_of(state, settings, now_ms) is not None)
    )


@dataclass(slots=True)
class MessagePace:
    """When a message may go: a while after the first of its news, and not too soon after the last message."""

    noticed_ms: int | None = None
    sent_ms: int | None = None

    def may_send(self, *, any_news: bool, settings: MessagesConfig, now_ms: int) -> bool:
        if not any_news:
            self.noticed_ms = None
            return False
        # A clock that was put back must not silence us.
        if self.noticed_ms is None or self.noticed_ms > now_ms:
            self.noticed_ms = now_ms
        if self.sent_ms is not None and self.sent_ms > now_ms:
            self.sent_ms = None
        grouped = now_ms - self.noticed_ms >= settings.group_for * 1000
        apart = self.sent_ms is None or now_ms - self.sent_ms >= settings.apart * 1000
        return grouped and apart

    def sent(self, now_ms: int) -> None:
        self.noticed_ms, self.sent_ms = None, now_ms

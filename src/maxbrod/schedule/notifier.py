"""Tells people and dead man's switches about jobs, through the channels of the configuration."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from maxbrod.schedule.messages.alarm import WELL, JobMessage, MessagePace, find_news, still_in_trouble
from maxbrod.schedule.messages.channels import ask, channels_of, ping_address
from maxbrod.schedule.messages.courier import Courier, Delivery
from maxbrod.schedule.messages.mask import Masker

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.schedule.jobs import ScheduledJob
    from maxbrod.schedule.state import JobOutcome, JobState

_PING_S: Final = 60.0
"""A ping that arrives later than this would tell the service nothing true."""


class Notifier:
    """Use it in a `with`. One thread calls it; deliveries have threads of their own."""

    def __init__(self, config: Config, courier: Courier | None = None) -> None:
        self._courier = courier or Courier()
        self._pace = MessagePace()
        self._mask = Masker()
        self.reload(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._courier.__exit__()

    def reload(self, config: Config) -> None:
        """Use another configuration from now on. EnvironmentMissingError: it needs a package that is missing."""
        channels = channels_of(config.messages)
        self._channels, self._settings = channels, config.messages
        self._mask = Masker(config)
        self._archive = self._mask(config.archive or "")

    @property
    def counts(self) -> tuple[int, int]:
        """How many messages and pings were delivered, and how many were not."""
        return self._courier.delivered, self._courier.failed

    def masked(self, outcome: JobOutcome) -> JobOutcome:
        """The outcome without any secret."""
        return replace(outcome, error=self._mask.maybe(outcome.error), hint=self._mask.maybe(outcome.hint))

    def begun(self, job: ScheduledJob) -> None:
        self._ping(job, "start")

    def ended(self, job: ScheduledJob, outcome: JobOutcome) -> None:
        # Of what was stopped nothing is said: the service raises the alarm if it does not go on.
        if not outcome.stopped:
            self._ping(job, "success" if outcome.good else "failure")

    def _ping(self, job: ScheduledJob, event: str) -> None:
        ping = job.settings.ping
        address = None if ping is None else ping_address(ping, event)
        if address is not None:
            delivery = Delivery(send=partial(ask, address), what=f"{event} of {job.name}", give_up_after_s=_PING_S)
            self._courier.give(f"ping of {job.name}", delivery)

    def tell(self, states: Mapping[str, JobState], now_ms: int) -> dict[str, str | None]:
        """Send a message if one is due. Return what people know now of each job that it is about."""
        if not self._channels:
            return {}
        news = find_news(states, self._settings, now_ms)
        if not self._pace.may_send(any_news=bool(news), settings=self._settings, now_ms=now_ms):
            return {}
        message = JobMessage(
            archive=self._archive,
            host=socket.gethostname(),
            at_ms=now_ms,
            news=news,
            still=still_in_trouble(states, news, self._settings, now_ms),
        )
        for channel in self._channels:
            delivery = Delivery(
                send=partial(channel.send, message),
                what="a message",
                give_up_after_s=self._settings.give_up_after,
            )
            self._courier.give(channel.name, delivery)
        self._pace.sent(now_ms)
        return {item.job: None if item.state == WELL else item.state for item in news}

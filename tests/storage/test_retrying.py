from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.errors import UnavailableError
from maxbrod.storage import remote
from maxbrod.storage.remote import RetryPolicy
from support.clocks import set_time

if TYPE_CHECKING:
    import pytest


def test_a_store_that_is_waited_for_is_told_now_and_then_and_not_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    set_time(monkeypatch, "maxbrod.storage.remote", monotonic=lambda: now, sleep=sleep)
    tries = 0

    def attempt() -> str:
        nonlocal tries
        tries += 1
        if now < 40:
            raise UnavailableError("503")
        return "done"

    assert RetryPolicy(deadline_s=180).run(attempt) == "done"
    expected = 1 + int((40 - remote.WARN_FIRST_S) // remote.WARN_EVERY_S)
    assert expected - 1 <= len(caplog.messages) <= expected
    assert caplog.messages[0].startswith("waiting for the store: 503; giving up in 17")
    assert len(caplog.messages) < tries

from __future__ import annotations

import pytest

from maxbrod.board import Board, seated
from maxbrod.errors import UnavailableError
from maxbrod.kafka.wire import deadline
from maxbrod.kafka.wire.deadline import Pace
from support.clocks import set_time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only while something sleeps."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    set_time(monkeypatch, "maxbrod.kafka.wire.deadline", monotonic=lambda: now[0], sleep=sleep)
    return now


def test_bytes_take_the_time_that_the_rate_gives_them(clock: list[float]) -> None:
    pace = Pace(1000)
    for _ in range(11):
        pace.wait(500)
    # Ten of them have had their half second; the last one has just begun.
    assert clock[0] == pytest.approx(105.0, abs=deadline._PAUSE_S)


def test_small_pieces_keep_the_rate_as_well(clock: list[float]) -> None:
    pace = Pace(1000)
    for _ in range(1001):
        pace.wait(10)
    assert clock[0] == pytest.approx(110.0, abs=deadline._PAUSE_S)


def test_without_a_rate_nothing_waits(clock: list[float]) -> None:
    pace = Pace(None)
    for _ in range(100):
        pace.wait(10**12)
    assert clock[0] == 100.0


@pytest.mark.parametrize("rate", [1000, None])
def test_a_task_that_is_stopped_waits_no_more_and_says_so(rate: int | None) -> None:
    board = Board.in_memory(1)
    with seated(board, 0):
        pace = Pace(rate)
    pace.wait(10**9)
    board.ask_to_stop()
    with pytest.raises(UnavailableError, match="stopped on request"):
        pace.wait(1)

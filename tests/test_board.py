"""Tasks count their bytes on a board, and read there that they are to stop."""

from __future__ import annotations

import multiprocessing
import stat
import threading
from pathlib import Path

import pytest

from maxbrod.board import (
    Board,
    Seat,
    Stop,
    is_process_stopped,
    seat_of_task,
    seated,
    stop_of_task,
    stopped_by,
    waited_for,
)
from maxbrod.errors import StoppedError
from maxbrod.storage.stores import open_storage


def seat() -> Seat:
    found = seat_of_task()
    assert found is not None
    return found


def test_each_task_counts_for_itself_and_the_driver_sees_the_sum() -> None:
    board = Board.in_memory(2)
    for number, size in ((0, 5), (1, 7), (0, 1)):
        board.add(number, size)
    assert board.bytes_done() == 13


def test_an_attempt_whose_worker_was_lost_counts_no_more() -> None:
    board = Board.in_memory(2)
    board.add(0, 100)
    board.add(1, 1)
    with seated(board, 0):
        seat().count(3)
    assert board.bytes_done() == 4


def test_a_thread_without_a_task_counts_nowhere_and_is_not_stopped() -> None:
    assert seat_of_task() is None
    assert stop_of_task() is None


def test_a_task_that_has_ended_counts_no_more() -> None:
    board = Board.in_memory(1)
    with seated(board, 0):
        seat().count(1)
    assert seat_of_task() is None
    assert board.bytes_done() == 1


def work(path: Path) -> None:
    with seated(Board.attach(path), 1):
        seat().count(1 << 40)
        stop = stop_of_task()
        assert stop is not None
        assert stop.wait(60), "the driver says so"
        seat().count(1)


def test_another_process_attaches_by_a_private_file_which_is_gone_at_the_end() -> None:
    with Board.in_file(2) as board:
        assert board.path is not None
        assert stat.S_IMODE(board.path.stat().st_mode) == 0o600
        worker = multiprocessing.get_context("spawn").Process(target=work, args=(board.path,))
        worker.start()
        while board.bytes_done() < 1 << 40:
            assert worker.exitcode is None
        assert not board.is_stopping()
        board.ask_to_stop()
        worker.join()
        assert worker.exitcode == 0
        assert board.bytes_done() == (1 << 40) + 1
    assert not board.path.exists()


def test_waiting_for_a_stop_ends_without_one() -> None:
    with seated(Board.in_memory(1), 0):
        stop = stop_of_task()
        assert stop is not None
        assert not stop.wait(0.01)


def test_a_task_reads_nothing_after_a_stop_and_still_writes(tmp_path: Path) -> None:
    board = Board.in_memory(1)
    with seated(board, 0):
        storage = open_storage(str(tmp_path))
        storage.put("before", bytes(7))
        assert len(storage.get("before")) == 7
        assert len(storage.get_range("before", 2, 3)) == 3
        board.ask_to_stop()
        for read in (storage.get, storage.head):
            with pytest.raises(StoppedError):
                read("before")
        storage.put("after", b"what was read by then is kept")
    assert board.bytes_done() == 10, "what is written does not count: it was read before"
    assert open_storage(str(tmp_path)).get("after").tobytes() == b"what was read by then is kept"


def test_a_step_that_changes_nothing_is_interrupted_and_says_that_it_was_stopped() -> None:
    stop = Stop()

    def interrupted() -> None:
        assert stop.raises
        stop.set()
        raise KeyboardInterrupt

    with pytest.raises(StoppedError), stop.raising():
        interrupted()
    assert not stop.raises
    with pytest.raises(StoppedError), stop.raising():
        raise AssertionError("it does not even begin")


def test_an_interrupt_that_something_took_for_a_failure_still_stops_the_step() -> None:
    stop = Stop()
    with pytest.raises(StoppedError), stop.raising():
        stop.set()


def test_a_call_that_never_returns_is_given_up_after_a_signal_and_one_that_does_is_not() -> None:
    stop, never = threading.Event(), threading.Event()
    assert waited_for(lambda: 7, 0.0) == 7
    with stopped_by(stop):
        assert waited_for(lambda: 7, 0.0) == 7
        with pytest.raises(ValueError, match="of the call"):
            waited_for(lambda: int("of the call"), 0.0)
        stop.set()
        assert is_process_stopped()
        assert waited_for(lambda: 7, 60.0) == 7, "what ends the work is waited for"
        with pytest.raises(StoppedError):
            waited_for(never.wait, 0.0)
    never.set()
    assert not is_process_stopped()

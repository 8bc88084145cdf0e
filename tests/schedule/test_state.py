"""The state of a schedule in an archive: one writer, whole documents, and what a killed scheduler leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_for_writing
from maxbrod.errors import CorruptDataError, UnavailableError, UnsupportedFormatError
from maxbrod.schedule.state import INTERRUPTED, JobOutcome, JobState, ScheduleLease, ScheduleState, read_state
from maxbrod.storage.composed import SCHEDULE_FOLDER
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.storage.interface import Storage

GOOD = JobOutcome(slot_ms=1, started_ms=2, finished_ms=3, exit_code=0, verdict="complete")
BAD = replace(GOOD, exit_code=3, verdict="incomplete", error="why")
STATE = ScheduleState(jobs={"nightly": JobState(verb="backup", since_ms=1, slot_ms=5, last=BAD, recent=(GOOD, BAD))})


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "archive"))


def lease_of(storage: Storage, now: list[float]) -> ScheduleLease:
    return ScheduleLease(storage, takeover_s=60, clock=lambda: now[0])


def test_what_is_written_is_read_again(storage: Storage) -> None:
    lease = lease_of(storage, [0.0])
    assert read_state(storage) is None
    assert lease.take() == ScheduleState()
    assert lease.save(STATE)
    found = read_state(storage)
    assert found is not None
    assert (found.jobs, found.instance) == (STATE.jobs, lease.instance)
    assert len(list(storage.list(SCHEDULE_FOLDER))) == 1


def test_one_of_two_schedulers_has_the_lease_and_the_other_waits(storage: Storage) -> None:
    now = [0.0]
    first, second = lease_of(storage, now), lease_of(storage, now)
    # Both find it free; one is faster.
    assert first.take() is not None
    assert second.take() is not None
    assert first.save(STATE)
    assert not second.save(ScheduleState())
    assert second.take() is None
    assert second.holder == first.instance


def test_a_scheduler_that_is_silent_for_long_is_replaced_and_can_write_nothing_more(storage: Storage) -> None:
    now = [0.0]
    first, second = lease_of(storage, now), lease_of(storage, now)
    first.take()
    first.save(STATE)
    assert second.take() is None
    now[0] = 59.0
    assert second.take() is None
    first.save(STATE)  # it lives
    now[0] = 61.0
    assert second.take() is None
    now[0] = 121.0
    taken = second.take()
    assert taken is not None
    assert taken.jobs == STATE.jobs
    assert second.save(taken)
    # The first one was only stopped, and goes on. The document that its own would meet may be gone already.
    assert second.save(taken)
    assert not first.save(replace(STATE, jobs={}))
    assert not first.held
    found = read_state(storage)
    assert found is not None
    assert (found.jobs, found.instance) == (STATE.jobs, second.instance)


def test_a_write_whose_answer_was_lost_is_not_taken_for_another_scheduler(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = lease_of(storage, [0.0])
    lease.take()
    lease.save(STATE)
    real = type(storage).put

    def lose(self: Storage, path: str, data: Any) -> None:
        real(self, path, data)
        raise UnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(type(storage), "put", lose)
        with pytest.raises(UnavailableError):
            lease.save(replace(STATE, jobs={}))
    assert lease.save(STATE)
    found = read_state(storage)
    assert found is not None
    assert found.jobs == STATE.jobs


def test_a_lease_that_was_given_back_is_free_at_once(storage: Storage) -> None:
    first, second = lease_of(storage, [0.0]), lease_of(storage, [0.0])
    first.take()
    first.save(STATE)
    assert second.take() is None
    first.release(STATE)
    assert second.take() is not None


def test_a_run_whose_scheduler_was_killed_is_a_failure_and_its_slot_stays_taken() -> None:
    state = JobState(verb="backup", since_ms=1, slot_ms=5, running_since_ms=6).interrupted()
    assert (state.slot_ms, state.running_since_ms, state.failures) == (5, None, 1)
    assert state.last is not None
    assert state.last.verdict == INTERRUPTED


def test_failures_are_counted_in_a_row_and_a_stop_is_neither_failure_nor_success() -> None:
    state = JobState(verb="backup", since_ms=1)
    for outcome, failures in [(BAD, 1), (BAD, 2), (replace(BAD, stopped=True), 2), (GOOD, 0), (BAD, 1)]:
        state = state.ended(outcome)
        assert state.failures == failures
    assert state.last_success_ms == GOOD.finished_ms


def test_few_runs_are_remembered_and_of_a_follower_only_changes() -> None:
    state = JobState(verb="backup", since_ms=1)
    follower = replace(state, follows=True)
    for _ in range(100):
        state, follower = state.ended(GOOD), follower.ended(GOOD)
    assert (len(state.recent), len(follower.recent)) == (20, 1)
    assert [outcome.exit_code for outcome in follower.ended(BAD).ended(GOOD).recent] == [0, 3, 0]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"maxbrod":2}', UnsupportedFormatError),
        ('{"maxbrod":1,"jobs":{"a":{}}}', CorruptDataError),
        ("{", CorruptDataError),
        ("[]", CorruptDataError),
    ],
)
def test_a_state_that_is_not_understood_is_refused(storage: Storage, text: str, error: type[Exception]) -> None:
    storage.put(f"{SCHEDULE_FOLDER}/000000000001.json", text.encode())
    with pytest.raises(error):
        read_state(storage)


def test_a_state_from_before_the_first_backup_does_not_keep_the_archive_from_being_created(storage: Storage) -> None:
    lease = lease_of(storage, [0.0])
    lease.take()
    lease.save(STATE)
    open_for_writing(storage.url)
    assert read_state(storage) is not None

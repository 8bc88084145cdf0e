"""Tasks run in this process or on Spark with the same outcomes, and Spark starts only for work that is worth it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import SparkConfig
from maxbrod.errors import CorruptDataError, UnavailableError, UsageError
from maxbrod.work import executor as module
from maxbrod.work.executor import LOCAL_BYTES_MAX, LocalExecutor, Workers
from maxbrod.work.jobs import SparkExecutor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.work.progress import Progress

TASKS = [[1, 2], [3], [], [4, 5, 6]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    by: int


def multiply(factor: Factor, numbers: Sequence[int]) -> list[int]:
    return [factor.by * number for number in numbers]


def damage(_: None, numbers: Sequence[int]) -> list[int]:
    if 3 in numbers:
        raise CorruptDataError("three is damaged", offset=3)
    return list(numbers)


@pytest.mark.parametrize("parallelism", [1, 2, 8])
def test_outcomes_come_in_the_order_of_the_tasks(parallelism: int) -> None:
    found = LocalExecutor(parallelism).run(multiply, Factor(by=2), TASKS, name="doubling")
    assert found == [2, 4, 6, 8, 10, 12]


def test_both_executors_give_the_same_outcomes(spark: Any) -> None:
    def triple(_context: None, numbers: Any) -> Any:
        return [3 * number for number in numbers]

    executors = LocalExecutor(2), SparkExecutor(spark)
    here, there = (each.run(triple, None, TASKS, name="tripling") for each in executors)
    assert here == there == [3, 6, 9, 12, 15, 18]


def test_tasks_share_nothing_as_they_would_not_on_spark() -> None:
    shared: list[int] = []

    assert LocalExecutor(2).run(_append, shared, [[1], [2]], name="sharing") == [[1], [2]]
    assert shared == []


def _append(shared: list[int], numbers: Sequence[int]) -> list[list[int]]:
    shared.extend(numbers)
    return [shared]


def test_the_error_of_a_task_arrives_as_it_was_raised() -> None:
    with pytest.raises(CorruptDataError, match="three is damaged") as caught:
        LocalExecutor(1).run(damage, None, [[1], [3], [5]], name="damage", on_done=lambda _: None)
    assert caught.value.offset == 3


def test_progress_counts_tasks_that_have_ended() -> None:
    seen: list[int] = []
    LocalExecutor(2).run(multiply, Factor(by=1), TASKS, name="counting", on_done=seen.append)
    assert seen[-1] == len(TASKS)
    assert seen == sorted(seen)


def test_a_stop_begins_no_further_task_and_says_so() -> None:
    stop, begun = threading.Event(), list[int]()

    def on_done(count: int) -> None:
        begun.append(count)
        stop.set()

    with pytest.raises(UnavailableError, match="stopped before all of its tasks had ended"):
        LocalExecutor(1).run(_wait, 0.3, [[number] for number in range(20)], name="slow", on_done=on_done, stop=stop)
    assert begun[-1] == 20, "those that run have ended, the others never begin"


def _wait(seconds: float, numbers: Sequence[int]) -> list[int]:
    threading.Event().wait(seconds)
    return list(numbers)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions that were opened."""
    found: list[str] = []

    class Opening:
        def __init__(self, config: SparkConfig, *_: object, **__: object) -> None:
            self.config = config

        def __enter__(self) -> Any:
            found.append(self.config.master)
            return object()

        def __exit__(self, *_: object) -> None:
            found.append("closed")

    monkeypatch.setattr(module, "open_configured", Opening)
    return found


def test_small_work_starts_no_spark_and_large_work_does_once(opened: list[str]) -> None:
    phases: list[Progress] = []
    with Workers(SparkConfig(), on_progress=phases.append) as workers:
        assert isinstance(workers.for_bytes(LOCAL_BYTES_MAX), LocalExecutor)
        assert not opened
        assert isinstance(workers.for_bytes(LOCAL_BYTES_MAX + 1), SparkExecutor)
        assert isinstance(workers.for_bytes(1), SparkExecutor), "it is open now"
    assert opened == ["local[*]", "closed"]
    assert [step.phase for step in phases] == ["starting Spark"]


@pytest.mark.parametrize(
    ("config", "local"),
    [
        (SparkConfig(engine="local"), True),
        (SparkConfig(engine="spark"), False),
        (SparkConfig(master="spark://somewhere:7077"), False),
        (SparkConfig(master="local[4]"), True),
    ],
)
def test_the_engine_and_the_master_decide_for_work_of_any_size(
    opened: list[str], config: SparkConfig, *, local: bool
) -> None:
    with Workers(config) as workers:
        assert isinstance(workers.for_bytes(1), LocalExecutor) is local
        if config.engine == "local":
            assert isinstance(workers.for_bytes(1 << 40), LocalExecutor)
    assert bool(opened) is not local


def test_a_session_that_is_handed_in_does_all_work(opened: list[str]) -> None:
    given: Any = object()
    with Workers(SparkConfig(), session=given) as workers:
        assert isinstance(workers.for_bytes(1), SparkExecutor)
    assert opened == ["local[*]", "closed"]


def test_work_that_only_spark_can_do_is_refused_without_it() -> None:
    with Workers(SparkConfig(engine="local")) as workers, pytest.raises(UsageError, match="done by Spark itself"):
        workers.session()

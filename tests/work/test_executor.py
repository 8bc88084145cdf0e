"""Tasks run in this process or on Spark with the same outcomes, and Spark starts only for work that is worth it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import SparkConfig
from maxbrod.errors import CorruptDataError, StoppedError, UnavailableError, UsageError
from maxbrod.work import executor as module
from maxbrod.work.executor import LOCAL_BYTES_MAX, LocalExecutor, Workers
from maxbrod.work.jobs import SparkExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

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


class Seen:
    """A meter that remembers what it was told, and calls `then` with the bytes."""

    def __init__(self, then: Callable[[int], None] = lambda _: None) -> None:
        self.tasks: list[int] = []
        self.sizes: list[int] = []
        self._then = then

    def seen(self, tasks: int, size: int) -> None:
        self.tasks.append(tasks)
        self.sizes.append(size)
        self._then(size)


def test_tasks_share_nothing_as_they_would_not_on_spark() -> None:
    shared: list[int] = []

    assert LocalExecutor(2).run(_append, shared, [[1], [2]], name="sharing") == [[1], [2]]
    assert shared == []


def _append(shared: list[int], numbers: Sequence[int]) -> list[list[int]]:
    shared.extend(numbers)
    return [shared]


def test_the_error_of_a_task_arrives_as_it_was_raised() -> None:
    with pytest.raises(CorruptDataError, match="three is damaged") as caught:
        LocalExecutor(1).run(damage, None, [[1], [3], [5]], name="damage", meter=Seen())
    assert caught.value.offset == 3


def test_progress_counts_tasks_that_have_ended() -> None:
    seen = Seen()
    LocalExecutor(2).run(multiply, Factor(by=1), TASKS, name="counting", meter=seen)
    assert seen.tasks[-1] == len(TASKS)
    assert seen.tasks == sorted(seen.tasks)


def test_a_stop_begins_no_further_task_and_says_so() -> None:
    stop = threading.Event()
    seen = Seen(lambda _: stop.set())
    with pytest.raises(UnavailableError, match="stopped before all of its tasks had ended"):
        LocalExecutor(1).run(_wait, 0.3, [[number] for number in range(20)], name="slow", meter=seen, stop=stop)
    assert seen.tasks[-1] < 20, "those that run have ended, the others never begin, and none of these is done"


def counting() -> Any:
    """A task that counts until the driver says stop, and says how far it came. It travels by value."""

    def count(size: int, numbers: Any) -> Any:
        from maxbrod.board import seat_of_task  # noqa: PLC0415 - in a worker

        seat, done = seat_of_task(), 0
        assert seat is not None
        while not seat.stop.wait(0.01):
            seat.count(size)
            done += size
        return [done for _ in numbers]

    return count


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.full)])
def test_tasks_count_bytes_while_they_run_and_a_gentle_stop_keeps_what_they_did(
    engine: str, request: pytest.FixtureRequest
) -> None:
    executor = LocalExecutor(2) if engine == "local" else SparkExecutor(request.getfixturevalue("spark"))
    stop = threading.Event()
    seen = Seen(lambda size: stop.set() if size > 1000 else None)
    outcomes = executor.run(counting(), 100, [[1], [2]], name="counted", meter=seen, stop=stop, gentle=True)
    assert len(outcomes) == 2
    assert seen.sizes == sorted(seen.sizes)
    assert sum(outcomes) >= seen.sizes[-1] > 1000, "they were seen while they ran"


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.full)])
def test_a_stop_that_is_not_gentle_keeps_nothing(engine: str, request: pytest.FixtureRequest) -> None:
    executor = LocalExecutor(2) if engine == "local" else SparkExecutor(request.getfixturevalue("spark"))
    stop = threading.Event()
    with pytest.raises(StoppedError, match="stopped before all"):
        executor.run(counting(), 100, [[1]], name="cut", meter=Seen(lambda _: stop.set()), stop=stop)


def reading() -> Any:
    """A task that knows nothing of progress: it reads an object again and again. It travels by value."""

    def read(url: str, names: Any) -> Any:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - in a worker

        from maxbrod.storage.stores import open_storage  # noqa: PLC0415

        storage = open_storage(url)
        with ThreadPoolExecutor(2) as pool:
            while True:
                for found in pool.map(lambda name: storage.get_range(name, 0, 10), [*names, *names]):
                    assert len(found) == 10

    return read


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.full)])
def test_whatever_a_task_reads_from_a_storage_counts_and_a_stop_ends_it_at_its_next_read(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    executor = LocalExecutor(2) if engine == "local" else SparkExecutor(request.getfixturevalue("spark"))
    (tmp_path / "object").write_bytes(bytes(100))
    stop = threading.Event()
    seen = Seen(lambda size: stop.set() if size > 1000 else None)
    with pytest.raises(StoppedError):
        executor.run(reading(), str(tmp_path), [["object"], ["object"]], name="reading", meter=seen, stop=stop)
    assert seen.sizes[-1] > 1000
    assert seen.sizes[-1] % 10 == 0, "threads of a task lose no count of each other"


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

"""A backup that follows: new topics join, failures pass, thresholds hold back and a stop takes everything."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.backup.follow import Interval, follow
from maxbrod.backup.plan.ranges import RollLimits, RollSchedule
from maxbrod.backup.run import Backup
from maxbrod.catalog.catalog import Catalog
from maxbrod.config import Config, KafkaConfig
from maxbrod.errors import RefusedError, StorageFullError, UnavailableError
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.work.intervals import Intervals
from support.clocks import set_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


class Followed:
    """Follows in this thread; a step for each interval says what happens after it, and the last one stops it."""

    def __init__(self, cluster: Cluster, archive: Path, session: Any) -> None:
        self.archive = str(archive)
        self.intervals: list[Interval] = []
        self._kafka = KafkaConfig(bootstrap=cluster.bootstrap)
        self._session = session

    def __call__(self, *steps: Callable[[], object], **request: Any) -> Interval:
        stop = threading.Event()
        after = iter([*steps, stop.set])

        def on_interval(interval: Interval) -> None:
            self.intervals.append(interval)
            next(after, stop.set)()

        sections = {"archive": self.archive, "kafka": self._kafka, "backup": {"every": 0.01, **request}}
        config = Config.model_validate(sections)
        return follow(config, stop=stop, on_interval=on_interval, session=self._session)

    @property
    def records(self) -> list[int | None]:
        return [None if each.report is None else each.report.records for each in self.intervals]

    def archived(self, topic: str) -> int:
        rows = open_archive(self.archive).catalog.rows(topic=topic)
        assert set(rows["kind"].to_pylist()) <= {"data"}
        return sum(rows["records"].to_pylist())


@pytest.fixture
def followed(cluster: Cluster, tmp_path: Path, spark: Any) -> Followed:
    return Followed(cluster, tmp_path / "archive", spark)


def test_topics_join_by_the_next_interval_and_missing_ones_are_told(
    cluster: Cluster, topic: str, followed: Followed
) -> None:
    other = f"{topic}-later"
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))

    def more() -> None:
        create_topic(cluster, other)
        produce(cluster, other, numbered(7))
        produce(cluster, topic, numbered(3))

    last = followed(more, topics=(topic, other))
    assert followed.records == [10, 10]
    told = [[notice.kind for notice in each.report.notices] for each in followed.intervals if each.report]
    assert told == [["missing"], []]
    assert (last.exit_code, last.lag_offsets) == (0, 0)


def test_an_interval_whose_commit_failed_leaves_nothing_out(
    cluster: Cluster, topic: str, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))
    commit, failing = Catalog.commit, iter([True])

    def sometimes(self: Catalog, *arguments: Any, **options: Any) -> int:
        if next(failing, False):
            raise UnavailableError("the store is away")
        return commit(self, *arguments, **options)

    monkeypatch.setattr(Catalog, "commit", sometimes)
    last = followed(lambda: produce(cluster, topic, numbered(5)), topics=(topic,))
    assert followed.records == [None, 15]
    assert [each.failures for each in followed.intervals] == [1, 0]
    assert last.recovery_point_ms is not None
    assert followed.archived(topic) == 15


@pytest.mark.parametrize(
    ("error", "ends"),
    [(RefusedError("taken"), True), (StorageFullError("full"), False), (UnavailableError("x"), False)],
)
def test_only_an_error_that_no_retry_helps_ends_it(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, error: Exception, ends: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Backup, "run", fail)
    if ends:
        with pytest.raises(RefusedError):
            followed(topics=())
    else:
        last = followed(lambda: None, topics=())
        assert (last.error, last.failures, last.exit_code, last.recovery_point_ms) == (error, 2, 1, None)


def test_thresholds_put_a_partition_off_and_a_stop_takes_everything(
    cluster: Cluster, topic: str, followed: Followed
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(3))

    def enough() -> None:
        produce(cluster, topic, numbered(20))

    def little() -> None:
        produce(cluster, topic, numbered(2))

    last = followed(enough, little, topics=(topic,), roll_records=20, roll_age="1h")
    # Three wait, with twenty more they are read, two wait again, and the stop takes them.
    assert followed.records == [0, 23, 0, 2]
    assert [each.lag_offsets for each in followed.intervals] == [3, 0, 2, 0]
    points = [each.recovery_point_ms or 0 for each in followed.intervals]
    assert points[2] == points[1] < followed.intervals[2].started_at_ms
    assert points[3] > points[2]
    assert last.exit_code == 0


class Looked:
    """A backup that does nothing, and remembers whether each run was to read everything."""

    recovery_point_ms = lags = None

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self.everything: list[bool] = []
        self._during = during

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hurry(self) -> None:
        pass

    def wait_for_news(self, _: float) -> bool:
        raise AssertionError("an interval waits for its tick")

    def run(self, *, waiting: RollSchedule | None, **_: bool) -> None:
        self.everything.append(waiting is None)
        self._during()


@pytest.mark.parametrize(("by_caller", "runs"), [(False, [False, True]), (True, [False])])
def test_a_stop_reads_what_came_after_the_last_look(*, by_caller: bool, runs: list[bool]) -> None:
    """Unless the caller stops it after an interval that left nothing, as for one run only."""
    stop = threading.Event()
    looked: Any = Looked() if by_caller else Looked(during=stop.set)
    on_interval = (lambda _: stop.set()) if by_caller else (lambda _: None)
    follow(Config(), stop=stop, on_interval=on_interval, opened=looked, waiting=RollSchedule(RollLimits(age_ms=1000)))
    assert looked.everything == runs


def test_a_run_that_takes_too_long_piles_no_intervals_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    set_time(monkeypatch, "maxbrod.work.intervals", monotonic=lambda: now)
    ticks = Intervals(10.0, threading.Event())
    now = 1003.0
    assert ticks.next_in_s(0) == 7.0
    now = 1045.0  # it ran over the ticks at 1020, 1030 and 1040
    assert ticks.next_in_s(0) == 5.0
    now = 1050.0
    assert ticks.next_in_s(0) == 10.0


def test_failures_in_a_row_are_tried_again_later_and_later_but_not_never(monkeypatch: pytest.MonkeyPatch) -> None:
    set_time(monkeypatch, "maxbrod.work.intervals", monotonic=lambda: 0.0)
    pauses = [Intervals(60.0, threading.Event()).next_in_s(failures) for failures in (0, 1, 2, 3, 50)]
    assert pauses == [60.0, 60.0, 120.0, 240.0, 300.0]

"""Without an interval, egress wakes by a record and ingress by a commit, and a quiet link costs little."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.knowledge import NOTHING, encode_carried
from maxbrod.backup import follow as following
from maxbrod.backup.base import BackupBase
from maxbrod.catalog.catalog import Catalog
from maxbrod.config import Config
from maxbrod.kafka.fetch.news import LogPlace, News
from maxbrod.model import GapReason, PartitionId
from maxbrod.replicate import newest
from maxbrod.replicate.egress import backup_config, follow_source
from maxbrod.replicate.ingress.run import Ingress, follow_archive
from maxbrod.replicate.newest import CommitWatch, Newest
from maxbrod.replicate.view import LinkView
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.storage.local import LocalStorage
from maxbrod.work import intervals
from maxbrod.work.intervals import APART_S, IDLE_S, Intervals, pause_after
from support.archives import Place, commit_run
from support.catalog_rows import TOPIC_ID, gap, segment
from support.replications import SUFFIX, archive, assert_mirrored, carry, link_config
from support.restore_oracle import log_of
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from maxbrod.backup.follow import Interval
    from maxbrod.sandbox.cluster import Cluster

NEVER_S = 3600.0
ONE = PartitionId(topic_id=TOPIC_ID, partition=0)


class Clock:
    """Stands still but for those who sleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (intervals, newest):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@contextmanager
def running(target: Callable[..., object], config: Config, **more: Any) -> Iterator[threading.Event]:
    """Runs a verb in a thread, until the end of the block."""
    stop = threading.Event()
    thread = threading.Thread(target=target, args=(config,), kwargs={"stop": stop, **more})
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()


# When to begin


def test_runs_of_a_busy_source_begin_a_tenth_of_a_second_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """So there are at most ten commits a second, however much is written."""
    clock = Clock(monkeypatch)
    ticks, runs, until = Intervals(0.0, threading.Event()), 0, clock.now + 60
    while clock.now < until:
        assert ticks.wait(news=None)
        clock.sleep(0.001)
        runs += 1
    assert runs <= 60 / APART_S


def test_without_news_a_run_begins_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    ticks, begun, until = Intervals(0.0, threading.Event()), list[float](), clock.now + 60
    while clock.now < until:
        assert ticks.wait(news=clock.wait)
        begun.append(clock.now)
    assert len(begun) == pytest.approx(60 / IDLE_S, abs=1)


@pytest.mark.parametrize(("failures", "pause_s"), [(1, IDLE_S), (2, 2 * IDLE_S), (4, 8 * IDLE_S), (99, 60.0)])
def test_without_an_interval_failures_are_not_repeated_at_once(failures: int, pause_s: float) -> None:
    assert pause_after(failures, 0.0, 60.0) == pause_s


# Egress


def test_news_are_records_that_are_committed_behind_the_given_offset(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, partitions=2)
    config = link_config(cluster, "nowhere", topic).cluster
    with News(config) as news:
        found = news._client.metadata([topic]).topics[topic]

        def places(offset: int) -> list[LogPlace]:
            return [
                LogPlace(
                    topic=topic,
                    topic_id=found.topic_id,
                    partition=number,
                    leader=cast("int", each.leader),
                    offset=offset,
                )
                for number, each in found.partitions.items()
            ]

        assert not news.wait(places(0), 0.3)
        heard: list[bool] = []
        waiting = threading.Thread(target=lambda: heard.append(news.wait(places(0), NEVER_S)))
        waiting.start()
        produce(cluster, topic, numbered(3), partition=1)
        waiting.join()
        assert heard == [True]
        assert not news.wait(places(3), 0.3), "they are known, and an older request says nothing new"
        # A place that a broker refuses keeps nobody waiting for the others, and is not asked for all the time.
        assert not news.wait([LogPlace(topic=topic, topic_id=found.topic_id, partition=9, leader=1, offset=0)], 0.3)


def test_an_egress_without_interval_wakes_by_a_record_not_by_a_beat(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervals, "IDLE_S", NEVER_S)
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    config = link_config(cluster, tmp_path / "archive", topic, every=0.0, roll_age=0.0)
    records: list[int] = []
    quiet = threading.Event()

    def ran(interval: Interval) -> None:
        records.append(interval.records)
        if not interval.records:
            quiet.set()

    with without_spark(), running(follow_source, config, on_interval=ran):
        for count in (7, 11):
            assert quiet.wait(60)
            quiet.clear()
            produce(cluster, topic, numbered(count))
        assert quiet.wait(60)
    assert [each for each in records if each] == [5, 7, 11]


def test_waves_look_at_groups_and_settings_once_a_second_and_share_one_snapshot(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "IDLE_S", NEVER_S)  # here, once an hour
    captured: list[str] = []
    monkeypatch.setattr(BackupBase, "capture", _counted(BackupBase.capture, captured))
    create_topic(cluster, topic)
    config = backup_config(link_config(cluster, tmp_path / "archive", f"{topic}*", every=0.0, roll_age=0.0))
    stop, carried = threading.Event(), list[int]()

    def ran(interval: Interval) -> None:
        carried.append(interval.records)
        if sum(carried) >= 40:
            stop.set()
        elif interval.records or len(carried) == 1:
            produce(cluster, topic, numbered(10))

    with without_spark():
        following.follow(config, stop=stop, on_interval=ran)
    assert sum(carried) == 40
    assert len(captured) == 1
    opened = open_archive(str(tmp_path / "archive"))
    assert len(list(opened.storage.list("snapshots"))) == 1
    assert len([run for run in opened.catalog.runs() if run.snapshot]) >= 4


def test_a_topic_that_comes_between_two_looks_at_the_cluster_is_recorded_with_its_settings(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "IDLE_S", NEVER_S)
    create_topic(cluster, topic)
    config = backup_config(link_config(cluster, tmp_path / "archive", f"{topic}*", every=0.0, roll_age=0.0))
    stop, later = threading.Event(), f"{topic}-later"

    def ran(interval: Interval) -> None:
        if interval.number == 1:
            create_topic(cluster, later, config={"retention.ms": "123456"})
            produce(cluster, later, numbered(3))
        elif interval.records:
            stop.set()

    with without_spark():
        following.follow(config, stop=stop, on_interval=ran)
    plain = link_config(cluster, tmp_path / "archive", topic)
    known = {each.name: each for each in LinkView(plain, cast("Any", None)).look().cluster.topics}
    assert (known[later].configs or {})["retention.ms"] == "123456"


# Ingress


def _view_of(place: Place) -> LinkView:
    return LinkView(
        Config.model_validate({"archive": place.url, "kafka": {"bootstrap": "nowhere:1"}}), cast("Any", None)
    )


def _same(followed: Newest, opened: Newest) -> None:
    assert followed.version == opened.version
    assert followed.positions == opened.positions
    assert followed.gaps == opened.gaps
    assert (followed.run_id, followed.snapshot, followed.cluster) == (opened.run_id, opened.snapshot, opened.cluster)


def test_an_archive_that_is_followed_commit_by_commit_looks_as_if_it_were_opened_anew(local_place: Place) -> None:
    """Over more commits than fold into one file, and than one checkpoint holds."""
    writer, view, end = local_place.create(), _view_of(local_place), 10
    commit_run(writer, "run-0", [segment(0, end)], carried=encode_carried(NOTHING))
    view.portions(view.look(), {ONE: (end, end)}, accept_gaps=False)
    for number in range(1, 80):
        rows: list[Any] = [segment(end, end + 10, path=f"segments/z-{number}")]
        if number % 9 == 0:
            rows.append(gap(end + 10, end + 13, reason=GapReason.RETENTION))
        if number % 7 == 0:
            rows.append(segment(0, 2, partition=number, path=f"segments/y-{number}"))
        commit_run(writer, f"run-{number}", rows, carried=encode_carried(NOTHING))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("maxbrod.replicate.view.open_archive", lambda *_, **__: pytest.fail("opened again"))
            patched.setattr(Catalog, "rows", lambda *_, **__: pytest.fail("rows were read again"))
            looked = view.look()
            portion = view.portions(looked, {ONE: (end, end + 10)}, accept_gaps=False)[ONE]
        # The slice before them is compared with the log.
        before = [] if number % 9 == 1 and number > 1 else [end]  # a gap ends there
        assert [each.end_offset for each in portion.slices] == [*before, end + 10]
        end = max(row.end_offset for row in rows if row.partition == 0)
    _same(view.look(), _view_of(local_place).look())
    assert len(cast("Any", view.look().archive.catalog)._table.log.files) <= 66, "entries do not pile up"


@pytest.mark.parametrize("change", ["replaced", "filled"])
def test_an_archive_whose_commits_do_more_than_go_on_is_read_as_a_whole(local_place: Place, change: str) -> None:
    writer = local_place.create()
    old = segment(20, 30, path="segments/c")
    commit_run(writer, "run-0", [segment(0, 10), old], carried=encode_carried(NOTHING))
    view = _view_of(local_place)
    assert view.portions(view.look(), {ONE: (5, 30)}, accept_gaps=False)[ONE].lost is not None
    if change == "replaced":
        writer.catalog.commit([segment(20, 30, path="segments/b")], replaced=[old])
    else:
        commit_run(writer, "run-1", [segment(10, 20, path="segments/b")], carried=encode_carried(NOTHING))
    looked = view.look()
    _same(looked, _view_of(local_place).look())
    portion = view.portions(looked, {ONE: (5, 30)}, accept_gaps=True)[ONE]
    assert "segments/b" in {each.path for each in portion.slices}


class Counting(LocalStorage):
    """A folder that is taken for a store, and counts what it is asked for."""

    distant = True
    asked = 0

    def head(self, path: str) -> Any:
        type(self).asked += 1
        return super().head(path)


def test_one_who_waits_for_a_commit_asks_a_store_about_once_a_second(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = local_place.create()
    commit_run(writer, "run-0", [segment(0, 10)])
    looked = _view_of(local_place).look()
    monkeypatch.setattr(Counting, "asked", 0)
    cast("Any", looked.archive.catalog)._storage = store = Counting(local_place.folder)
    object.__setattr__(looked.archive, "storage", store)
    watch, stop, clock = CommitWatch(), threading.Event(), Clock(monkeypatch)
    until = clock.now + 60
    while clock.now < until:
        assert not watch.wait(looked, IDLE_S, stop)
    assert Counting.asked <= 60 + 5
    commit_run(writer, "run-1", [segment(10, 20)])
    assert watch.wait(looked, IDLE_S, stop)


def _counted(real: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def count(*words: Any, **more: Any) -> Any:
        asked.append(real.__name__)
        return real(*words, **more)

    return count


def test_a_quiet_interval_of_ingress_asks_the_store_for_two_objects_and_lists_nothing(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, every=0.0)
    produce(cluster, topic, numbered(10))
    archive(config)
    asked: list[str] = []
    with Ingress(config) as ingress:
        ingress.run()
        ingress.run()
        for name in ("head", "get", "list", "put", "replace", "delete"):
            monkeypatch.setattr(LocalStorage, name, _counted(getattr(LocalStorage, name), asked))
        for _ in range(5):
            ingress.run()
    assert sorted(asked) == sorted(["get", "head"] * 5)


# Both


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_a_link_without_intervals_brings_every_record_once_and_in_order(
    cluster: Cluster, tmp_path: Path, topic: str, mode: str
) -> None:
    create_topic(cluster, topic, partitions=2)
    config = link_config(cluster, tmp_path / "archive", topic, every=0.0, roll_age=0.0, offsets=mode)
    produce(cluster, topic, numbered(1))
    carry(config)
    total = {0: 1, 1: 0}
    with (
        without_spark(),
        running(follow_source, config, on_interval=lambda _: None),
        running(follow_archive, config, on_interval=lambda _: None),
    ):
        for burst in range(12):
            where = burst % 2
            produce(cluster, topic, numbered(20 + burst, first=total[where]), partition=where)
            total[where] += 20 + burst
        for where, count in total.items():
            wait_for("the mirror", partial(_has, cluster, topic, where, count), timeout_s=120)
    for where, count in total.items():
        assert _values(cluster, topic, where) == [b"value-%d" % number for number in range(count)]
        if mode == "exact":
            assert_mirrored(cluster, topic, where)


def _has(cluster: Cluster, topic: str, partition: int, count: int) -> bool:
    return len(_values(cluster, topic, partition)) >= count


def _values(cluster: Cluster, topic: str, partition: int) -> list[bytes | None]:
    return [each.value for each in log_of(cluster, topic + SUFFIX, partition).values()]

"""Several instances of egress: one works, the others stand by, and take over when it is lost or leaves."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from backup.engine import without_spark
from maxbrod.archive.opening import open_archive
from maxbrod.config import StorageConfig
from maxbrod.errors import UnavailableError
from maxbrod.replicate.archive_lease import FOLDER, ArchiveLease
from maxbrod.replicate.egress import follow_source
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.sandbox.waiting import wait_for
from maxbrod.storage.opening import open_storage
from replicate.engine import link_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.storage.interface import Storage


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path), StorageConfig())


def test_one_holds_the_lease_and_one_that_waits_takes_it_when_it_has_not_been_renewed(storage: Storage) -> None:
    clock = Clock()
    first, second = (ArchiveLease(storage, takeover_s=30, clock=clock) for _ in range(2))
    assert first.hold()
    assert not second.hold()
    assert second.holder == first.instance
    for clock.now in (29.0, 50.0, 75.0):
        assert first.hold(), "it renews"
        assert not second.hold()
    clock.now = 104.9
    assert not second.hold()
    clock.now = 105.0
    assert not first.held
    assert second.hold()
    assert second.takeovers == 1
    assert not first.renew(), "it slept, and finds its lease gone"
    assert not first.hold()


def test_an_instance_that_slept_never_holds_the_lease_again_although_old_objects_are_gone(storage: Storage) -> None:
    """The holder deletes old objects, so that the one that slept can create the number that follows its own."""
    clock = Clock()
    first, second = (ArchiveLease(storage, takeover_s=30, clock=clock) for _ in range(2))
    assert first.hold()
    assert not second.hold()
    for clock.now in (30.0, 60.0, 90.0):
        assert second.hold()
    assert not first.renew()
    assert second.renew()
    assert len(list(storage.list(FOLDER))) == 1


def test_of_two_that_take_a_free_lease_one_gets_it(storage: Storage) -> None:
    clock = Clock()
    first, second = (ArchiveLease(storage, takeover_s=30, clock=clock) for _ in range(2))
    assert second._newest() == (0, None)
    assert first.hold()
    assert not second._put(1), "the number that both saw to be free"


def test_a_lease_that_is_given_back_is_taken_at_once(storage: Storage) -> None:
    clock = Clock()
    first, second = (ArchiveLease(storage, takeover_s=30, clock=clock) for _ in range(2))
    assert first.hold()
    assert not second.hold()
    first.release()
    assert second.hold()
    assert second.takeovers == 0, "nobody was lost"


def test_a_lost_lease_ends_the_work(storage: Storage) -> None:
    first, second = (ArchiveLease(storage, takeover_s=each) for each in (3600, 0))
    assert first.hold()
    ending = threading.Event()
    first._takeover_s = 0.5
    with first.kept(threading.Event(), ending):
        assert second.hold()
        assert ending.wait(60)
    assert not first.held


def test_an_egress_stands_by_and_takes_over(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, every=0.2, roll_age=0, takeover=3600)
    produce(cluster, topic, numbered(10))
    with without_spark(), _egress(config) as (first, _):
        wait_for("ten records", lambda: _archived(config) == 10, timeout_s=60)
        with _egress(config) as (_, standing):
            wait_for("an instance that stands by", lambda: len(standing), timeout_s=60)
            with pytest.raises(UnavailableError, match="another instance archives here"):
                follow_source(
                    link_config(cluster, tmp_path / "archive", topic, once=True, takeover=3600),
                    stop=threading.Event(),
                    on_interval=lambda _: None,
                )
            first.set()
            produce(cluster, topic, numbered(10, first=10))
            wait_for("twenty records", lambda: _archived(config) == 20, timeout_s=60)


@contextmanager
def _egress(config: Config) -> Iterator[tuple[threading.Event, list[str]]]:
    stop, standing = threading.Event(), list[str]()
    thread = threading.Thread(
        target=follow_source,
        args=(config,),
        kwargs={"stop": stop, "on_interval": lambda _: None, "on_standby": standing.append},
    )
    thread.start()
    try:
        yield stop, standing
    finally:
        stop.set()
        thread.join()


def _archived(config: Config) -> int:
    try:
        positions = open_archive(str(config.archive), config.storage, layout="kafka").catalog.positions()
    except Exception:  # noqa: BLE001 - it may not exist yet
        return 0
    return sum(each.end_offset for each in positions.values())

"""What an archive tells a backup that starts afresh about recovery points."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import read_snapshot
from maxbrod.backup import archive_state
from maxbrod.backup.archive_state import ArchiveState, read_archive_state
from maxbrod.backup.run_state import BackupRun
from maxbrod.catalog.catalog import Catalog
from maxbrod.kafka.state.cluster_state import Broker, MissingState
from maxbrod.sandbox.surgery import delete_records
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.archives import Place, commit_run
from support.backups import back_up, config_of
from support.catalog_rows import TOPIC_ID, segment
from support.full_archive import EMPTY_ID, NAMES, cluster, fill, part

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.catalog.rows import Run
    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.storage.interface import Storage

NEW_ID = "NEWNEWNEWNEWNEWNEWNEWA"
LOOKED_AT = 1_700_000_000_001
"""As the examples have it."""


def remembered(place: Place, **changes: Any) -> ArchiveState:
    """The state of an archive whose last snapshot has a broker, and these recovery points."""
    archive = fill(place)
    broker = Broker(node_id=1, host="broker1", port=9092, rack=None)
    points = {part(0): 2000, part(1): None, part(0, EMPTY_ID): 3000}
    state = {"brokers": (broker,), "gaps": (), **changes}
    commit_run(
        archive,
        "run-3",
        [],
        topics=NAMES,
        ends={part(0): 30, part(1): 10, part(0, EMPTY_ID): 0},
        cluster=replace(cluster(), **state),
        recovery_points=points,
        finished_at=1_800_000_000_000,
        written_at=1_800_000_000_000,
    )
    return read_archive_state(archive)


def test_a_partition_that_did_not_exist_yet_has_missed_nothing_until_then(local_place: Place) -> None:
    found = remembered(local_place)
    # A topic and a partition that are new, and one that was there and that no backup has chosen.
    chosen = (part(0, NEW_ID), part(5), part(1, EMPTY_ID), part(1))
    before = found.recovery_points_before(chosen)
    assert [before.get(each) for each in chosen] == [LOOKED_AT, LOOKED_AT, None, None]
    assert before[part(0)] == 2000


def test_a_partition_that_may_have_been_hidden_is_not_taken_for_new(local_place: Place) -> None:
    found = remembered(local_place, gaps=(MissingState(what="topics that may be hidden", why="no right", hint=""),))
    assert part(0, NEW_ID) not in found.recovery_points_before([part(0, NEW_ID)])


def test_without_a_cluster_the_points_of_the_chosen_topics_are_known(local_place: Place) -> None:
    found = remembered(local_place)

    def chosen(*names: str) -> Any:
        def choose(known: Mapping[str, bool]) -> set[str]:
            assert known == {"orders": False, "empty": False}
            return set(names)

        return choose

    assert found.recovery_points_of(chosen("empty")) == [3000]
    assert found.recovery_points_of(chosen("orders")) == [2000, None]


def test_what_a_process_has_found_out_since_is_newer_than_what_is_recorded(local_place: Place) -> None:
    found = remembered(local_place)
    before = replace(found, recovery_points={part(0): 9000})
    found = read_archive_state(local_place.open(), before=before)
    assert (found.recovery_points[part(0)], found.recovery_points[part(0, EMPTY_ID)]) == (9000, 3000)


def test_a_run_of_other_topics_keeps_points_and_what_is_behind_while_the_cluster_has_them() -> None:
    run = BackupRun(present=frozenset({TOPIC_ID}), planned=True, unanswered={part(1): "orders"})
    before = {part(0): 1000, part(1): 500, part(0, EMPTY_ID): 700}
    points = run.recovery_points(before)
    assert points == {part(0): 1000, part(1): 500}
    assert run.recovery_point(points) == 500
    assert run.behind({part(0): 40, part(0, EMPTY_ID): 7}) == {part(0): 40, part(1): None}
    assert run.lags() == {"orders": None}
    assert BackupRun().lags() is None


def test_rows_are_read_only_if_something_was_committed_after_the_last_backup(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic, partitions=4)
    config = config_of(cluster, tmp_path / "archive", topic)
    for partition in (0, 2):
        produce(cluster, topic, numbered(5), partition=partition)
        assert back_up(config).exit_code == 0
    # Partition 3 has a row that is a gap, and partition 1 has none.
    produce(cluster, topic, numbered(5), partition=3)
    delete_records(cluster, topic, before_offset=5, partition=3)
    assert back_up(config).exit_code == 0
    reads: list[str] = []
    positions = Catalog.positions

    def counted(catalog: Catalog) -> Any:
        reads.append(catalog.url)
        return positions(catalog)

    monkeypatch.setattr(Catalog, "positions", counted)
    archive = open_archive(str(tmp_path / "archive"))
    state = read_archive_state(archive)
    assert reads == []
    from_rows = archive.catalog.positions()
    assert len(from_rows) >= 2
    assert {each: state.held[each] for each in from_rows} == from_rows
    others = [held for each, held in state.held.items() if each not in from_rows]
    assert all(held.first_offset == held.end_offset for held in others)
    # Any other commit may have changed rows that the snapshot describes.
    reads.clear()
    archive.catalog.commit([segment(0, 10)])
    later = read_archive_state(open_archive(str(tmp_path / "archive")))
    assert len(reads) == 1
    assert later.held == {**state.held, **positions(archive.catalog)}
    assert len(later.held) == len(state.held) + 1


def test_a_snapshot_that_is_an_object_of_its_own_is_read_once(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(storage: Storage, run: Run) -> Snapshot:
        read.append(run.run_id)
        return read_snapshot(storage, run)

    monkeypatch.setattr(archive_state, "read_snapshot", counted)
    assert remembered(local_place).shared is not None
    assert read == ["run-3"]

"""Several writers back up parts of the topics into one archive: nothing is lost, doubled or hidden by another one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_native
from maxbrod.archive.snapshots import last_snapshot_run, read_snapshot
from maxbrod.backup import commits
from maxbrod.backup.commits import Part
from maxbrod.backup.run import Backup
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.cli.main import run
from maxbrod.errors import UnavailableError
from maxbrod.inspect.listing import list_topics
from maxbrod.kafka.state.cluster_state import decode_state
from maxbrod.sandbox.surgery import delete_records
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up_while, config_of
from support.restores import put
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.backup.report import BackupReport
    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster


def part(*partitions: int, claim: int = 0, again: int | None = None) -> Part:
    return Part(
        claim=claim,
        has=lambda where: where.partition in partitions,
        generation=(0, False),
        leads=False,
        whole=False,
        claim_again=lambda _: again,
    )


@pytest.fixture
def config(cluster: Cluster, tmp_path: Path, topic: str) -> Config:
    create_topic(cluster, topic, partitions=2)
    _produce(cluster, topic)
    return config_of(cluster, tmp_path / "archive", topic)


def test_a_run_that_another_part_overtakes_is_recorded_on_top_of_it(config: Config, cluster: Cluster) -> None:
    topic = config.backup.topics[0]
    _back_up(config, 0)
    delete_records(cluster, topic, before_offset=4, partition=1)
    _produce(cluster, topic)
    other: list[BackupReport] = []
    report = back_up_while(config, lambda: other.append(_back_up(config, 1)), take_part=lambda: part(0))
    assert [each.partitions for each in (*report.topics, *other[0].topics)] == [1, 1]
    assert (report.committed, report.of_partitions, report.records, other[0].records) == (True, 2, 10, 16)
    assert report.version == other[0].version + 1
    snapshot = _snapshot(config)
    assert snapshot.run_id == report.run_id
    assert _by_partition(snapshot.ends) == {0: 20, 1: 20}
    assert _by_partition(snapshot.log_starts) == {0: 0, 1: 4}
    assert _by_partition(snapshot.recovery_points) == {0: report.started_at_ms, 1: other[0].started_at_ms}
    run = last_snapshot_run(open_native(str(config.archive)).catalog.runs())
    assert run is not None
    assert run.statistics["recovery_point_ms"] == report.started_at_ms, "the older one of both"
    _assert_tiled(config, 36)


def test_a_backup_that_another_command_overtakes_is_recorded_on_top_of_it(config: Config, cluster: Cluster) -> None:
    topic, archive = config.backup.topics[0], str(config.archive)
    with without_spark(), Backup(config) as backup:
        first = backup.run()
    _produce(cluster, topic)
    put(cluster, topic, {(topic, 0): 12})
    hold = ["hold", "add", "--archive", archive, "--topic", topic, "--why", "an audit"]
    codes: list[int] = []
    report = back_up_while(config, lambda: codes.append(run(hold)))
    assert (codes, report.exit_code, report.committed, report.records) == ([0], 0, True, 20)
    assert report.version == first.version + 2
    snapshot = _snapshot(config)
    assert snapshot.run_id == report.run_id
    assert _by_partition(snapshot.ends) == {0: 20, 1: 20}
    groups = [each for each in decode_state(snapshot.cluster).groups if each.group_id == topic]
    assert [each.offset for group in groups for each in group.offsets or ()] == [12], "the cluster as this run saw it"
    _assert_tiled(config, 40)


def test_a_run_of_a_part_is_no_recovery_point_of_what_nobody_has_archived(config: Config) -> None:
    report = _back_up(config, 0)
    run = last_snapshot_run(open_native(str(config.archive)).catalog.runs())
    assert run is not None
    assert report.recovery_point_ms == report.started_at_ms, "of its own partition"
    assert run.statistics["recovery_point_ms"] is None
    assert (run.statistics["partitions"], run.statistics["of_partitions"]) == (1, 2)
    assert _by_partition(_snapshot(config).recovery_points) == {0: report.started_at_ms, 1: None}
    assert list_topics(open_native(str(config.archive))).recovery_point is None


def test_a_run_whose_partition_another_writer_has_archived_meanwhile_is_dropped(config: Config) -> None:
    with pytest.raises(UnavailableError, match="this run was dropped: another writer has archived"):
        back_up_while(config, lambda: _back_up(config, 0, 1), take_part=lambda: part(0))
    _assert_tiled(config, 20)


def test_a_run_is_dropped_if_its_writer_was_taken_for_lost_although_nobody_has_archived_anything(
    config: Config,
) -> None:
    _back_up(config, 1)
    with pytest.raises(UnavailableError, match="this run was dropped: this writer was taken for lost"):
        back_up_while(config, lambda: _catalog(config).raise_fence(1), take_part=lambda: part(0))
    _assert_tiled(config, 10)
    report = back_up_while(config, lambda: _catalog(config).raise_fence(2), take_part=lambda: part(0, claim=1, again=2))
    assert report.records == 10, "another one was lost, and this one still has its partition"
    _assert_tiled(config, 20)


def test_a_writer_of_everything_is_recorded_on_top_of_another_command_that_was_faster(config: Config) -> None:
    everything = replace(part(claim=1), whole=True)
    report = back_up_while(config, lambda: _catalog(config).raise_fence(1), take_part=lambda: everything)
    assert (report.records, report.of_partitions) == (20, None)
    _assert_tiled(config, 20)


def test_a_writer_whose_part_has_changed_begins_where_the_others_have_ended(config: Config, cluster: Cluster) -> None:
    parts = [part(0), part(0), part(1)]
    with without_spark(), Backup(config, take_part=lambda: parts.pop(0)) as backup:
        assert backup.run().records == 10
        _produce(cluster, config.backup.topics[0])
        assert backup.run().records == 10
        assert _back_up(config, 1).records == 20
        _produce(cluster, config.backup.topics[0])
        parts[0] = replace(parts[0], generation=(1, False))
        assert backup.run().records == 10
    _assert_tiled(config, 50)


def test_a_quiet_part_records_its_recovery_point_while_others_write(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_RECORD_POINTS_MS", 0)
    with without_spark(), Backup(config, take_part=lambda: part(0)) as quiet:
        quiet.run()
        assert not quiet.run().committed, "nobody has written"
        _back_up(config, 1)
        report = quiet.run()
        assert report.committed
        assert report.records == 0
        assert _by_partition(_snapshot(config).recovery_points)[0] == report.started_at_ms
        assert not quiet.run().committed, "and now nobody has"


def _back_up(config: Config, *partitions: int) -> BackupReport:
    with without_spark(), Backup(config, take_part=lambda: part(*partitions)) as backup:
        return backup.run()


def _produce(cluster: Cluster, topic: str) -> None:
    for partition in range(2):
        produce(cluster, topic, numbered(10), partition=partition)


def _catalog(config: Config) -> Catalog:
    catalog = open_native(str(config.archive)).catalog
    assert isinstance(catalog, Catalog)
    return catalog


def _snapshot(config: Config) -> Snapshot:
    archive = open_native(str(config.archive))
    run = last_snapshot_run(archive.catalog.runs())
    assert run is not None
    return read_snapshot(archive.storage, run)


def _by_partition(values: Any) -> dict[int, Any]:
    return {each.partition: value for each, value in values.items()}


def _assert_tiled(config: Config, records: int) -> None:
    """No offset twice, and none left out."""
    rows = _catalog(config).rows()
    faults = find_tiling_faults(rows)
    assert faults.complete, faults
    assert sum(each or 0 for each in rows["records"].to_pylist()) == records

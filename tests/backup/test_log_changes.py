"""The log changes between runs and while it is read, in every way that Kafka knows: each hole has its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kafka.admin import NewPartitions

from maxbrod.model import topic_id_text
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.surgery import ROLL_KEY, compact, delete_records, expire
from maxbrod.sandbox.topics import create_topic, recreate_topic, topic_id
from maxbrod.sandbox.traffic import numbered
from support.archive_oracle import Holding, Key, read_archive
from support.backups import back_up, back_up_while, config_of, kinds
from support.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

KEEP = {"retention.ms": "-1"}


def filled(cluster: Cluster, topic: str, count: int, **options: Any) -> tuple[Ledger, Key]:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, count, **options)
    return ledger, (topic_id_text(topic_id(cluster, topic)), 0)


def complete(cluster: Cluster, topic: str, archive: Path, ledger: Ledger) -> Holding:
    """After whatever happened: one more run, and the archive is the truth."""
    report = back_up(config_of(cluster, archive, topic))
    assert report.exit_code == 0, report.notices
    held = read_archive(str(archive))
    held.assert_equals(ledger)
    return held


def test_what_retention_took_between_runs_is_a_gap(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    ledger, key = filled(cluster, topic, 200)
    back_up(config_of(cluster, tmp_path / "archive", topic))
    ledger.write(cluster, topic, 200)
    delete_records(cluster, topic, before_offset=300)
    ledger.forget(key, range(200, 300))
    report = back_up(config_of(cluster, tmp_path / "archive", topic))
    assert (report.exit_code, kinds(report).count("retention")) == (0, 1)
    held = complete(cluster, topic, tmp_path / "archive", ledger)
    assert held.gaps[key] == [(200, 300, "retention")]


def test_retention_of_everything_between_runs_is_a_gap_too(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    ledger, key = filled(cluster, topic, 200)
    back_up(config_of(cluster, tmp_path / "archive", topic))
    ledger.write(cluster, topic, 100)
    assert expire(cluster, topic) == 300
    ledger.forget(key, range(200, 300))
    report = back_up(config_of(cluster, tmp_path / "archive", topic))
    assert (report.exit_code, kinds(report).count("retention")) == (0, 1)
    ledger.write(cluster, topic, 10)
    held = complete(cluster, topic, tmp_path / "archive", ledger)
    assert held.gaps[key] == [(200, 300, "retention")]


@pytest.mark.parametrize("start", [100, 130, 300], ids=["at a batch", "within a batch", "of all"])
def test_what_retention_took_before_it_was_read_is_a_gap_and_the_rest_is_there(
    cluster: Cluster, topic: str, tmp_path: Path, start: int
) -> None:
    ledger, key = filled(cluster, topic, 300)
    report = back_up_while(
        config_of(cluster, tmp_path / "archive", topic),
        lambda: delete_records(cluster, topic, before_offset=start),
    )
    assert report.exit_code == 0, report.notices
    held = read_archive(str(tmp_path / "archive"))
    # Also where it lies within a batch, which the broker keeps whole.
    ledger.forget(key, range(start))
    held.assert_equals(ledger)
    assert held.gaps[key] == [(0, start, "retention")]
    complete(cluster, topic, tmp_path / "archive", ledger)


@pytest.mark.parametrize("partitions", [1, 2], ids=["alone", "together with others"])
def test_a_log_that_begins_within_a_batch_is_archived_from_there_on(
    cluster: Cluster, topic: str, tmp_path: Path, partitions: int
) -> None:
    create_topic(cluster, topic, partitions=partitions, config=KEEP)
    ledger = Ledger()
    for partition in range(partitions):
        ledger.write(cluster, topic, 300, partition=partition)
        delete_records(cluster, topic, partition=partition, before_offset=130)
    report = back_up(config_of(cluster, tmp_path / "archive", topic))
    assert report.exit_code == 0, report.notices
    for key in list(ledger.records):
        ledger.forget(key, range(130))
    held = complete(cluster, topic, tmp_path / "archive", ledger)
    assert {held.range_of(key)[0] for key in ledger.records} == {130}


def test_retention_that_overtakes_the_reader_is_a_gap_in_the_middle(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    # More than one answer of the smallest size that a task asks for.
    ledger, key = filled(cluster, topic, 600, batch=10, value_bytes=1000)
    report = back_up_while(
        config_of(cluster, tmp_path / "archive", topic),
        lambda: delete_records(cluster, topic, before_offset=400),
        after_chunks=1,
    )
    assert report.exit_code == 0, report.notices
    held = read_archive(str(tmp_path / "archive"))
    ((first, end, reason),) = held.gaps[key]
    assert (end, reason) == (400, "retention")
    assert 0 < first < 400
    ledger.forget(key, range(first, end))
    held.assert_equals(ledger)
    complete(cluster, topic, tmp_path / "archive", ledger)


def compacted_ledger(ledger: Ledger, key: Key, rolled: int) -> None:
    """The last record of each key stays; the roll is no record of ours."""
    last = {record.key: offset for offset, record in ledger.records[key].items()}
    ledger.forget(key, set(ledger.records[key]) - set(last.values()))
    assert rolled not in ledger.records[key]


def without_rolls(held: Holding, key: Key) -> Holding:
    held.records[key] = {at: record for at, record in held.records[key].items() if record.key != ROLL_KEY}
    return held


def test_what_compaction_took_between_runs_is_explained(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config={"cleanup.policy": "compact"})
    ledger = Ledger()
    ledger.produce(cluster, topic, numbered(100, keys=10))
    key = (topic_id_text(topic_id(cluster, topic)), 0)
    back_up(config_of(cluster, tmp_path / "archive", topic))
    before = dict(ledger.records[key])
    ledger.produce(cluster, topic, numbered(3000, first=100, keys=10))
    compacted_ledger(ledger, key, compact(cluster, topic))
    # What an earlier run has read stays, whatever the log has lost since.
    ledger.records[key] = {**before, **ledger.records[key]}
    report = back_up(config_of(cluster, tmp_path / "archive", topic))
    assert report.exit_code == 0, report.notices
    held = without_rolls(read_archive(str(tmp_path / "archive")), key)
    held.assert_equals(ledger)
    reasons = {row["reason"] for row in held.rows[key] if row["kind"] == "gap" or row["reason"]}
    assert reasons == {"compacted"}


def test_what_compaction_took_before_it_was_read_is_explained(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config={"cleanup.policy": "compact"})
    ledger = Ledger()
    ledger.produce(cluster, topic, numbered(3000, keys=10))
    key = (topic_id_text(topic_id(cluster, topic)), 0)
    report = back_up_while(
        config_of(cluster, tmp_path / "archive", topic),
        lambda: compacted_ledger(ledger, key, compact(cluster, topic)),
    )
    assert report.exit_code == 0, report.notices
    held = read_archive(str(tmp_path / "archive"))
    held.assert_equals(ledger)
    assert held.range_of(key) == (0, 3000)
    assert {row["reason"] for row in held.rows[key] if row["reason"]} == {"compacted"}


def test_a_recreated_topic_is_another_one_and_never_continues_the_old(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    ledger, _ = filled(cluster, topic, 120)
    back_up(config_of(cluster, tmp_path / "archive", topic))
    recreate_topic(cluster, topic, config=KEEP)
    ledger.write(cluster, topic, 170)
    held = complete(cluster, topic, tmp_path / "archive", ledger)
    assert sorted(held.range_of(key) for key in held.rows) == [(0, 120), (0, 170)]


@pytest.mark.parametrize("after_chunks", [0, 1], ids=["before it was read", "while it was read"])
def test_a_topic_recreated_during_a_run_is_never_mixed_with_the_old_one(
    cluster: Cluster, topic: str, tmp_path: Path, after_chunks: int
) -> None:
    ledger, old = filled(cluster, topic, 600, batch=10, value_bytes=1000)

    def recreate() -> None:
        recreate_topic(cluster, topic, config=KEEP)
        ledger.write(cluster, topic, 50)

    config = config_of(cluster, tmp_path / "archive", topic)
    report = back_up_while(config, recreate, after_chunks=after_chunks)
    assert "deleted" in kinds(report)
    # Nothing can ever be done about the old one: it is explained, and the new one is there already.
    assert report.exit_code == 0, report.notices
    held = read_archive(str(tmp_path / "archive"))
    ((first, end, reason),) = held.gaps[old]
    assert (end, reason, bool(first)) == (600, "deleted", bool(after_chunks))
    ledger.forget(old, range(first, end))
    held.assert_equals(ledger)
    complete(cluster, topic, tmp_path / "archive", ledger)


def add_partitions(cluster: Cluster, topic: str, count: int) -> None:
    with cluster.admin() as admin:
        admin.create_partitions({topic: NewPartitions(count)})
    name = f"{topic}-{count - 1}"
    folders = [cluster.log_dir(broker) / name for broker in cluster.broker_ids]
    wait_for(f"folder {name}", lambda: any(folder.exists() for folder in folders), timeout_s=60)


@pytest.mark.parametrize("runs", [back_up_while, None], ids=["during a run", "between runs"])
def test_added_partitions_join_with_the_next_run_at_the_latest(
    cluster: Cluster, topic: str, tmp_path: Path, runs: Callable[..., object] | None
) -> None:
    ledger, key = filled(cluster, topic, 100)
    config = config_of(cluster, tmp_path / "archive", topic)

    def grow() -> None:
        add_partitions(cluster, topic, 3)
        ledger.write(cluster, topic, 70, partition=2)

    report = back_up(config) if runs is None else back_up_while(config, grow)
    assert (report.exit_code, report.records) == (0, 100)
    if runs is None:
        grow()
    held = complete(cluster, topic, tmp_path / "archive", ledger)
    assert set(held.rows) == {key, (key[0], 2)}

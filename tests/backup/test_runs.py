"""What a run reads: all up to its planned end and nothing beyond, once over all runs, in few objects."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer

from maxbrod.backup import run as engine
from maxbrod.backup.plan.ranges import Task, plan_tasks
from maxbrod.model import topic_id_text
from maxbrod.sandbox.topics import create_topic, delete_topic, topic_id
from maxbrod.sandbox.traffic import open_transaction
from support.archive_oracle import read_archive
from support.backup_processes import driver
from support.backups import back_up, back_up_on, back_up_while, config_of
from support.ledger import Ledger, as_record
from support.storages import s3_section
from support.topics import KEEP, dated_messages, key_of, log_on_disk, transact, wait_for_marker

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import S3Server


def test_records_produced_during_a_run_are_left_for_the_next(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 120)
    before = dict(ledger.of(cluster, topic))
    config = config_of(cluster, tmp_path / "archive", topic)
    report = back_up_while(config, lambda: ledger.write(cluster, topic, 80))
    assert (report.exit_code, report.records) == (0, 120)
    held = read_archive(str(tmp_path / "archive"))
    assert held.records[key_of(cluster, topic)] == before
    assert back_up(config).records == 80
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)


def test_an_open_transaction_delays_only_its_own_partition_and_is_named(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, partitions=2, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 50)
    ledger.write(cluster, topic, 60, partition=1)
    config = config_of(cluster, tmp_path / "archive", topic)
    messages = dated_messages(5)
    with open_transaction(cluster, topic, messages, transactional_id=f"hangs-{topic}") as pending:
        ledger.write(cluster, topic, 40, partition=1)
        report = back_up(config)
        assert (report.exit_code, report.records) == (0, 150)
        (notice,) = (each for each in report.notices if each.kind == "open transaction")
        assert (notice.topic, notice.partition, notice.first_offset, notice.end_offset) == (topic, 0, 50, 55)
        assert f"hangs-{topic}" in notice.message
        assert "producer" in notice.message
        assert report.waiting == 5
        # Never past the last stable offset.
        read_archive(str(tmp_path / "archive")).assert_equals(ledger)
    ledger.note(cluster, topic, pending, map(as_record, messages))
    wait_for_marker(cluster, topic, pending)
    ledger.write(cluster, topic, 10)
    assert back_up(config).exit_code == 0
    held = read_archive(str(tmp_path / "archive"))
    held.assert_equals(ledger)
    assert [each["first_offset"] for row in held.rows[key_of(cluster, topic)] for each in row["aborted"]] == [50]


def test_aborted_transactions_are_recorded_wherever_a_run_or_a_range_ends(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    for commit in (True, False, False, True):
        ledger.write(cluster, topic, 20)
        transact(ledger, cluster, topic, 30, commit=commit)
    # Offsets 0-19 plain, 20-50 committed with its marker, 51-70 plain, 71-101 aborted, 102-121, 122-152 aborted, …
    monkeypatch.setattr(engine, "plan_tasks", partial(plan_tasks, task_bytes=600))
    assert back_up(config_of(cluster, tmp_path / "archive", topic)).exit_code == 0
    held = read_archive(str(tmp_path / "archive"))
    held.assert_equals(ledger)
    rows = held.rows[key_of(cluster, topic)]
    assert len(rows) > 4
    for row in rows:
        touching = [
            (first, last)
            for first, last in ((71, 101), (122, 152))
            if first < row["end_offset"] and last >= row["base_offset"]
        ]
        assert [each["first_offset"] for each in row["aborted"]] == [first for first, _ in touching]
        for each, (_, last) in zip(row["aborted"], touching, strict=True):
            assert each["last_offset"] == min(last, row["end_offset"] - 1)


def test_a_split_partition_gives_the_same_bytes_as_a_sequential_read(
    cluster: Cluster, topic: str, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 700, batch=37)
    transact(ledger, cluster, topic, 100, commit=False)
    ledger.write(cluster, topic, 60, batch=1)
    assert back_up(config_of(cluster, tmp_path / "sequential", topic, compression="source")).exit_code == 0
    tasks: list[Task] = []

    def split(*arguments: Any, **options: Any) -> Any:
        """A task of its own for each few thousand bytes, which no planner would find worthwhile."""
        waves = plan_tasks(*arguments, **{**options, "task_bytes": 6000, "pack_bytes_max": 0})
        alone = tuple(tuple(Task(items=(item,)) for task in wave for item in task.items) for wave in waves)
        tasks.extend(task for wave in alone for task in wave)
        return alone

    monkeypatch.setattr(engine, "plan_tasks", split)
    report = back_up_on(spark, config_of(cluster, tmp_path / "split", topic, compression="source"))
    assert report.exit_code == 0, report.notices
    assert len(tasks) > 5
    key = key_of(cluster, topic)
    sequential, parallel = read_archive(str(tmp_path / "sequential")), read_archive(str(tmp_path / "split"))
    parallel.assert_equals(ledger)
    assert parallel.range_of(key) == sequential.range_of(key)
    assert parallel.logs[key] == sequential.logs[key] == log_on_disk(cluster, topic)
    assert len(parallel.rows[key]) > len(sequential.rows[key])


def test_many_runs_with_traffic_between_are_complete_without_overlap(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    draw = random.Random(4)
    create_topic(cluster, topic, partitions=3, config=KEEP)
    ledger = Ledger()
    config = config_of(cluster, tmp_path / "archive", topic)
    with_news = 0
    for _ in range(9):
        written = draw.choice([(), (0,), (1, 2), (0, 1, 2)])
        for partition in written:
            ledger.write(cluster, topic, draw.randrange(1, 90), partition=partition, batch=draw.choice((1, 7, 50)))
            if draw.random() < 0.3:
                transact(ledger, cluster, topic, 5, commit=draw.random() < 0.5, partition=partition)
        report = back_up(config)
        # Groups of other tests may come to rest meanwhile, which is news as well.
        assert (report.exit_code, report.committed or not written) == (0, True)
        with_news += report.committed
        held = read_archive(str(tmp_path / "archive"))
        held.assert_equals(ledger)
        assert len(held.runs) == with_news
        if not written:
            assert report.objects == 0


def test_hundreds_of_quiet_partitions_take_a_handful_of_puts(
    cluster: Cluster, topic: str, s3: S3Server, s3_proxy: FaultProxy
) -> None:
    count = 300
    create_topic(cluster, topic, partitions=count, config=KEEP)
    archive = f"{s3.url}/archive"
    ledger = Ledger()
    # In a process of its own: delta-rs would not let the proxy's threads run.
    with driver(cluster, topic, s3_section(s3, s3={"endpoint": s3_proxy.endpoint})) as program:
        for turn in range(2):
            write_to_each(ledger, cluster, topic, count, b"%d" % turn)
            before = s3_proxy.requests["PUT"]
            said = program.run(archive)
            assert said["exit_code"] == 0
            assert said["report"]["records"] == count
            assert said["report"]["objects"] <= 8
            # The tasks' packs, the snapshot, the catalog's file and commit; at first also the probe and the table.
            assert s3_proxy.requests["PUT"] - before <= 16
        # As in `settles`.
        assert any(not program.run(archive)["report"]["committed"] for _ in range(10))
        before = s3_proxy.requests["PUT"]
        assert not program.run(archive)["report"]["committed"]
        # The probe, nothing else.
        assert s3_proxy.requests["PUT"] - before <= 2
    read_archive(str(s3.object_path("archive"))).assert_equals(ledger)
    delete_topic(cluster, topic)


def write_to_each(ledger: Ledger, cluster: Cluster, topic: str, count: int, value: bytes) -> None:
    """One record to each partition."""
    message = dated_messages(1, value=value)[0]
    topic_text = topic_id_text(topic_id(cluster, topic))
    with KafkaProducer(**cluster.running_client_properties()) as producer:
        futures = [
            producer.send(topic, key=message.key, value=value, partition=each, timestamp_ms=message.timestamp_ms)
            for each in range(count)
        ]
        for partition, future in enumerate(futures):
            ledger.records.setdefault((topic_text, partition), {})[future.get(timeout=120).offset] = as_record(message)

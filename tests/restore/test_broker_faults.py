"""Brokers of the target die, hand over, hang and lose their replicas under a restore: it completes, nothing twice."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from maxbrod.sandbox.surgery import delete_records
from maxbrod.sandbox.topics import create_topic, replicas, wait_for_in_sync
from maxbrod.sandbox.traffic import numbered
from support.backups import back_up, config_of
from support.ledger import Ledger
from support.restore_faults import KEEP, archive, lost_answers, renamed, restore, when_acknowledged
from support.restore_oracle import assert_restored
from support.restores import put, stand

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster
    from support.plain_log import Record

PATIENCE_S = 120.0
"""For what must end well, however slow the machine is."""


def replicated(cluster: Cluster, topic: str, place: Path, *, min_in_sync: int) -> tuple[Config, dict[int, Record]]:
    """A topic on all brokers, its group at 250, backed up."""
    config = {**KEEP, "min.insync.replicas": str(min_in_sync)}
    create_topic(cluster, topic, replication_factor=3, config=config)
    ledger = Ledger()
    ledger.write(cluster, topic, 600, batch=10, in_a_row=2)
    put(cluster, topic, {(topic, 0): 250})
    settings = config_of(cluster, place, topic)
    assert back_up(settings).complete
    return settings, dict(ledger.of(cluster, topic))


def assert_on_all(cluster: Cluster, topic: str, wanted: dict[int, Record]) -> None:
    wait_for_in_sync(cluster, topic, cluster.broker_ids)
    for broker in cluster.broker_ids:
        assert_restored(cluster, topic, wanted, broker=broker)


@pytest.mark.parametrize("death", ["kill", "stop"])
def test_a_leader_that_dies_or_hands_over_costs_nothing(
    cluster3: Cluster, topic: str, tmp_path: Path, death: str
) -> None:
    config, wanted = replicated(cluster3, topic, tmp_path, min_in_sync=1)
    gone: list[int] = []

    def lose_leader() -> None:
        leader = replicas(cluster3, f"new-{topic}").leader
        assert leader is not None
        gone.append(leader)
        getattr(cluster3, death)(leader)

    try:
        with when_acknowledged(5, lose_leader):
            report = restore(config, renamed(groups=(topic,)))
    finally:
        for broker in gone:
            cluster3.restart(broker)
        cluster3.wait_until_settled()
    assert (report.exit_code, report.records) == (0, 600), report.partitions[0].failure
    assert_on_all(cluster3, f"new-{topic}", wanted)
    assert stand(cluster3, topic)[f"new-{topic}", 0] == 250


def test_too_few_replicas_are_waited_for(cluster3: Cluster, topic: str, tmp_path: Path) -> None:
    config, wanted = replicated(cluster3, topic, tmp_path, min_in_sync=3)
    restarting: list[threading.Thread] = []

    def lose_follower() -> None:
        held = replicas(cluster3, f"new-{topic}")
        follower = next(each for each in held.replicas if each != held.leader)
        cluster3.kill(follower)
        wait_for_in_sync(cluster3, f"new-{topic}", set(held.replicas) - {follower})
        restarting.append(threading.Thread(target=cluster3.restart, args=[follower]))
        restarting[0].start()

    try:
        with when_acknowledged(5, lose_follower):
            report = restore(config, renamed())
    finally:
        for each in restarting:
            each.join()
        cluster3.wait_until_settled()
    assert (report.exit_code, report.records) == (0, 600), report.partitions[0].failure
    assert_on_all(cluster3, f"new-{topic}", wanted)


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_answers_that_get_lost_when_all_was_done_cost_nothing(
    cluster: Cluster, topic: str, tmp_path: Path, mode: str
) -> None:
    """One answer of every kind of request that changes something."""
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 60, batch=10, in_a_row=2)
    delete_records(cluster, topic, before_offset=20)
    ledger.forget(next(iter(ledger.records)), range(20))
    ledger.transact(cluster, topic, numbered(3), commit=False)
    ledger.write(cluster, topic, 200, batch=10, in_a_row=2)
    put(cluster, topic, {(topic, 0): 64})
    config = config_of(cluster, tmp_path, topic)
    assert back_up(config).complete
    lost = {"CreateTopics": 1, "InitProducerId": 2, "Produce": 6, "IncrementalAlterConfigs": 1, "OffsetCommit": 1}
    with lost_answers(lost | ({"DeleteRecords": 1, "WriteTxnMarkers": 1} if mode == "exact" else {})):
        report = restore(config, renamed(mode, groups=(topic,)))
    assert report.exit_code == 0, report
    wanted = dict(ledger.of(cluster, topic))
    assert_restored(cluster, f"new-{topic}", wanted, base=None if mode == "exact" else 0)
    assert stand(cluster, topic)[f"new-{topic}", 0] == (64 if mode == "exact" else 40)


def test_a_broker_that_hangs_for_a_while_costs_nothing(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    config, (wanted,) = archive(cluster, topic, tmp_path, records=400)
    (broker,) = cluster.broker_ids
    resume = threading.Timer(4, cluster.resume, [broker])

    def hang() -> None:
        cluster.suspend(broker)
        resume.start()

    with when_acknowledged(3, hang):
        report = restore(config, renamed())
    resume.join()
    assert (report.exit_code, report.records) == (0, 400), report.partitions[0].failure
    assert_restored(cluster, f"new-{topic}", wanted)


def test_partitions_of_a_broker_that_stays_away_are_told_and_restored_when_it_is_back(
    cluster3: Cluster, topic: str, tmp_path: Path
) -> None:
    config, wanted = archive(cluster3, topic, tmp_path, partitions=3, patience=6)
    first, second, third = cluster3.broker_ids
    target = f"new-{topic}"
    create_topic(cluster3, target, assignments={0: [first], 1: [second], 2: [third]}, config=KEEP)
    try:
        with when_acknowledged(3, lambda: cluster3.kill(first)):
            report = restore(config, renamed("append"))
        assert report.exit_code == 1
        broken = report.partitions[0]
        assert broken.failure is not None
        assert broken.records < 200
        for each in report.partitions[1:]:
            assert each.failure is not None or each.records == 200
    finally:
        cluster3.restart(first)
        cluster3.wait_until_settled()
    report = restore(config.model_copy(update={"patience": PATIENCE_S}), renamed("append"))
    assert report.exit_code == 0, report.partitions
    for partition, broker in enumerate((first, second, third)):
        assert_restored(cluster3, target, wanted[partition], partition=partition, base=0, broker=broker)

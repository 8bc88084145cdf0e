"""kill -9 of the driver after each change that it makes: the same command resumes, and nothing is there twice."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maxbrod.sandbox.surgery import delete_records
from maxbrod.sandbox.topics import create_topic, offsets, set_topic_config
from maxbrod.sandbox.traffic import numbered
from support.backup_processes import Driver
from support.backups import back_up, config_of
from support.ledger import Ledger
from support.processes import environment, program
from support.restore_oracle import assert_restored
from support.restores import configs_of, put, stand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

LATE = 30
OWN = {"cleanup.policy": "compact", "max.message.bytes": "1500000", "min.compaction.lag.ms": "9000000000000"}


@contextmanager
def driver(config: Config, mode: str, *groups: str, markers: bool) -> Iterator[Driver]:
    settings = json.loads(config.model_dump_json())
    document = {"config": settings, "mode": mode, "groups": groups, "markers": markers}
    with subprocess.Popen(
        program("restores"),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(document)}\n")
        process.stdin.flush()
        try:
            yield Driver(process)
        finally:
            process.stdin.close()


@pytest.fixture
def ledger(cluster: Cluster, topic: str) -> Ledger:
    """One partition begins late, has transactions and ends with a marker; the other is plain. A group in both."""
    create_topic(cluster, topic, partitions=2, config={"retention.ms": "-1"})
    ledger = Ledger()
    for turn in range(5):
        ledger.produce(cluster, topic, numbered(10, first=10 * turn))
    delete_records(cluster, topic, before_offset=LATE)
    for offset in range(LATE):
        del ledger.of(cluster, topic)[offset]
    ledger.transact(cluster, topic, numbered(5, first=100), commit=True)
    ledger.transact(cluster, topic, numbered(3), commit=False)
    ledger.produce(cluster, topic, numbered(10, first=200))
    ledger.transact(cluster, topic, numbered(2), commit=False)
    for turn in range(2):
        ledger.produce(cluster, topic, numbered(10, first=10 * turn), partition=1)
    set_topic_config(cluster, topic, OWN)
    return ledger


@pytest.mark.parametrize(
    ("mode", "markers"),
    [("exact", True), ("exact", False), ("append", True)],
    ids=["exact", "exact by transactions", "append"],
)
def test_killed_at_any_point_a_restore_goes_on_without_loss_or_repetition(
    cluster: Cluster, topic: str, tmp_path: Path, ledger: Ledger, mode: str, *, markers: bool
) -> None:
    put(cluster, topic, {(topic, 0): 47, (topic, 1): 20})
    config = config_of(cluster, tmp_path / "archive", topic)
    assert back_up(config).complete
    wanted = [dict(ledger.of(cluster, topic, partition)) for partition in range(2)]
    at = 47 if mode == "exact" else 17
    own = configs_of(cluster, topic)
    met: list[str] = []
    with driver(config, mode, topic, markers=markers) as program:
        while not met or met[-1]:
            prefix = f"p{len(met)}-"
            said = program.run(prefix, len(met))
            met.append(said.get("killed", ""))
            # Killed when all was done: as if it had ended.
            if met[-1] != "put report.json.zst":
                said = program.run(prefix) if met[-1] else said
                assert said["exit_code"] == 0, (met[-1], said)
        assert program.run(prefix)["error"] == "RefusedError", "there is nothing left to do"
    # A request that had to be repeated shifts the points of one run, so that a moment may be missed; not all of them.
    assert {"sent Produce", "answered Produce"} <= set(met)
    assert {"put groups-before.json.zst", "sent OffsetCommit", "answered OffsetCommit"} & set(met)
    stands, end = stand(cluster, topic), offsets(cluster, topic)[1]
    for point, moment in enumerate(met):
        target = f"p{point}-{topic}"
        for partition, records in enumerate(wanted):
            base = None if mode == "exact" else 0
            assert_restored(cluster, target, records, partition=partition, base=base)
        if mode == "exact":
            assert offsets(cluster, target) == (LATE, end), moment
        assert (stands[target, 0], stands[target, 1]) == (at, 20), moment
        assert configs_of(cluster, target) == own, moment

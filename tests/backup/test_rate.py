from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backup.engine import back_up, config_of
from backup.ledger import Ledger
from backup.oracle import read_archive
from maxbrod.backup import task as task_module
from maxbrod.backup.choosing import open_backup
from maxbrod.config import Config
from maxbrod.errors import UsageError
from maxbrod.kafka.wire.pacing import Pace
from maxbrod.sandbox.topics import create_topic

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@pytest.mark.parametrize("partitions", [1, 3])
def test_every_byte_of_a_backup_is_paced_and_the_tasks_share_the_rate(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    create_topic(cluster, topic, partitions=partitions, config={"retention.ms": "-1"})
    ledger = Ledger()
    for partition in range(partitions):
        ledger.write(cluster, topic, 200, partition=partition)
    rates: list[float] = []
    paced: list[int] = []

    class Recorded(Pace):
        def __init__(self, bytes_per_s: float | None) -> None:
            super().__init__(None)
            rates.append(bytes_per_s or 0)

        def wait(self, size: int) -> None:
            paced.append(size)

    monkeypatch.setattr(task_module, "Pace", Recorded)
    report = back_up(config_of(cluster, tmp_path, topic, rate_bytes_per_s="6MB"))
    assert (report.exit_code, report.records) == (0, 200 * partitions)
    read_archive(str(tmp_path)).assert_equals(ledger)
    assert sum(paced) >= report.raw_bytes
    assert sum(rates) == pytest.approx(6_000_000)


def test_another_layout_refuses_a_rate(tmp_path: Path) -> None:
    config = Config.model_validate(
        {"archive": str(tmp_path), "layout": "kbak", "kafka": {"bootstrap": "h:1"}, "backup": {"rate_bytes_per_s": 1}}
    )
    with pytest.raises(UsageError, match="--rate is only for our own layout"):
        open_backup(config)

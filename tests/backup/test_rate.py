from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.backup import task as task_module
from maxbrod.cli.main import run
from maxbrod.kafka.wire.deadline import Pace
from maxbrod.sandbox.topics import create_topic
from maxbrod.transfer import task as transfer_module
from support.archive_oracle import read_archive
from support.backups import back_up, config_of
from support.conversions import back_up_as
from support.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@pytest.mark.parametrize(("layout", "partitions"), [(None, 1), (None, 3), ("kbs", 3)])
def test_every_byte_of_a_backup_is_paced_and_the_tasks_share_the_rate(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str | None, partitions: int
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

    monkeypatch.setattr(task_module if layout is None else transfer_module, "Pace", Recorded)
    config = config_of(cluster, tmp_path, topic, rate_bytes_per_s="6MB")
    report = back_up(config) if layout is None else back_up_as(config, layout)
    assert (report.exit_code, report.records) == (0, 200 * partitions)
    if layout is None:
        read_archive(str(tmp_path)).assert_equals(ledger)
    assert sum(paced) >= report.raw_bytes > 0
    assert sum(rates) == pytest.approx(6_000_000)


def test_a_backup_of_disks_refuses_a_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody else reads them, and a limit that is ignored would look like one that is kept."""
    assert run(["backup", "--from-logdir", str(tmp_path), "-a", str(tmp_path / "a"), "--rate", "1MB"]) == 2
    assert "--rate" in capsys.readouterr().err

"""The progress of a restore moves while a task runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.renames import parse_rename
from maxbrod.config import KafkaConfig
from maxbrod.model import TopicPartition
from maxbrod.restore import meter as restore_meter
from maxbrod.restore import run as engine
from maxbrod.restore.meter import Expected, RestoreMeter, metering_logs
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.work.work import Work
from support.backups import back_up, config_of
from support.sparkless import run_here, without_spark

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maxbrod.restore.items import Restored, RestoreItem, RestoreSettings
    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.work.progress import Progress


@pytest.mark.parametrize("mode", [OffsetsMode.EXACT, OffsetsMode.APPEND])
def test_progress_moves_while_no_task_is_done(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: OffsetsMode
) -> None:
    create_topic(cluster, topic, partitions=2)
    for partition in range(2):
        produce(cluster, topic, numbered(40), partition=partition)
    config = config_of(cluster, tmp_path, topic)
    back_up(config)
    monkeypatch.setattr(restore_meter, "_EVERY_S", 0.0)
    monkeypatch.setattr(restore_meter, "_SHARE", 1e9)
    steps: list[Progress] = []

    def job(
        task: object,
        settings: RestoreSettings,
        tasks: Sequence[Sequence[RestoreItem]],
        *,
        meter: RestoreMeter,
        **_: object,
    ) -> list[Restored]:
        found = []
        for items in tasks:
            found += run_here(task, settings, [items])
            meter.seen(0, 0)
        return found

    request = RestoreRequest(rename=parse_rename(prefix="new-"), offsets=mode)
    with without_spark(job), engine.Restore(Work(config, on_progress=steps.append), request) as work:
        plan = work.plan()
        assert work.run(plan).complete
    none, half, all_of_it = [step for step in steps if step.phase == "restoring"]
    assert none.bytes_done == none.records_done == 0
    assert 0 < half.bytes_done < half.bytes_total == plan.bytes
    assert (half.records_done, half.tasks_done) == (40, 0)
    assert (all_of_it.bytes_done, all_of_it.records_done) == (plan.bytes, 80)
    # A resumed restore starts with the progress of the target.
    with metering_logs(KafkaConfig(bootstrap=cluster.bootstrap), plan, steps.append, tasks=2):
        pass
    assert steps[-1].bytes_done == plan.bytes


def test_a_part_is_never_less_than_none_nor_more_than_all() -> None:
    where = TopicPartition(topic="orders", partition=0)
    log = Expected(where=where, base=100, offsets=50, bytes=1, records=50)
    assert [log.part(end) for end in (0, 100, 125, 150, 999)] == [0, 0, 0.5, 1, 1]
    assert Expected(where=where, base=100, offsets=0, bytes=0, records=0).part(100) == 1

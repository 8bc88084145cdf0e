"""One partition, read by one task and by two: whether splitting it is worth it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from maxbrod.backup.job import run_backup_job
from maxbrod.backup.plan.tasks import PartitionRange, plan_tasks
from maxbrod.backup.task import TaskSettings
from maxbrod.bench.race import Lap, race_laps
from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.errors import MaxbrodError
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.kafka.compression import Compression
from maxbrod.layouts.kafka.slices import SegmentLimits
from maxbrod.model import topic_id_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maxbrod.backup.plan.items import Task
    from maxbrod.bench.loads import Load
    from maxbrod.bench.race import Laps
    from maxbrod.engine.session import Session

    TimeLap = Callable[[Callable[[], object]], Lap]


def race_hot(
    session: Session, bootstrap: str, load: Load, archive: Path, *, lap: TimeLap, rounds: int
) -> dict[str, Laps]:
    """The Spark job alone, without planning and commit, with `one` task and with `two`."""
    kafka = KafkaConfig(bootstrap=bootstrap)
    with KafkaClient(kafka) as client:
        topic = client.topic(load.topic, deadline=Deadline.after(PATIENCE_S))
    settings = TaskSettings(
        run_id="bench",
        archive_url=str(archive),
        kafka=kafka,
        storage=StorageConfig(),
        compression=Compression(),
        limits=SegmentLimits(),
    )
    hot = PartitionRange(
        topic=load.topic,
        topic_id=topic_id_text(topic.topic_id),
        partition=0,
        start=0,
        end=load.records,
        bytes_per_offset=load.bytes / load.records,
    )

    def read(tasks: int) -> Lap:
        shutil.rmtree(archive, ignore_errors=True)
        (wave,) = plan_tasks([hot], parallelism=tasks, task_bytes=-(-hot.bytes_estimate // tasks))
        return lap(lambda: _read(session, settings, wave, load))

    return race_laps({"one": lambda: read(1), "two": lambda: read(2)}, rounds=rounds)


def _read(session: Session, settings: TaskSettings, tasks: tuple[Task, ...], load: Load) -> None:
    outcomes = run_backup_job(session, settings, tasks)
    records = sum(found.records for outcome in outcomes for found in outcome.slices)
    if records != load.records:
        failures = sorted({outcome.failure.message for outcome in outcomes if outcome.failure is not None})
        raise MaxbrodError(
            f"the tasks have read {records} of {load.records} records", operation="bench", hint="; ".join(failures)
        )

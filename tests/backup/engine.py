"""Runs backups in this process, with or without Spark: the session is the only thing that is ever left out."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from maxbrod.api import backup as engine
from maxbrod.config import Config, StorageConfig
from maxbrod.spark.backup import _work, decode_outcomes, encode_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from maxbrod.api.reports import BackupReport
    from maxbrod.planning.items import Outcome, Task
    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.spark.backup_task import TaskSettings


def config_of(
    cluster: Cluster, archive: object, *topics: str, storage: StorageConfig | None = None, **wish: Any
) -> Config:
    """`wish` is the section `backup`."""
    return Config.model_validate(
        {
            "archive": str(archive),
            "kafka": {"bootstrap": cluster.bootstrap},
            "storage": storage or StorageConfig(),
            "backup": {"topics": topics, **wish},
        }
    )


def run_job_here(
    _: object, settings: TaskSettings, tasks: Sequence[Task], *, on_done: Callable[[int], None] | None = None
) -> list[Outcome]:
    """What Spark does with tasks, one after another: text in, text out."""
    return [outcome for task in tasks for outcome in decode_outcomes(_work(settings, encode_task(task)))]


@contextmanager
def without_spark(job: Callable[..., list[Outcome]] = run_job_here) -> Iterator[None]:
    with patch.object(engine, "run_backup_job", job), patch.object(engine.Backup, "_spark", lambda _: None):
        yield


def back_up(config: Config, **options: Any) -> BackupReport:
    """One run, without Spark."""
    with without_spark(), engine.Backup(config, **options) as backup:
        return backup.run()


def back_up_on(session: Any, config: Config) -> BackupReport:
    """One run on a real session."""
    with engine.Backup(config, session=session) as backup:
        return backup.run()


def kinds(report: BackupReport) -> list[str]:
    return [notice.kind for notice in report.notices]

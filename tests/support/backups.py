"""Runs backups in this process, with or without Spark: the session is the only thing that is ever left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from maxbrod.backup import run as engine
from maxbrod.backup import task as task_module
from maxbrod.config import Config, StorageConfig
from support.sparkless import run_here, without_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maxbrod.backup.plan.ranges import Outcome
    from maxbrod.backup.report import BackupReport
    from maxbrod.backup.task import TaskSettings
    from maxbrod.sandbox.cluster import Cluster


def config_of(
    cluster: Cluster, archive: object, *topics: str, storage: StorageConfig | None = None, **request: Any
) -> Config:
    """`request` is the section `backup`."""
    return Config.model_validate(
        {
            "archive": str(archive),
            "kafka": {"bootstrap": cluster.bootstrap},
            "storage": storage or StorageConfig(),
            "backup": {"topics": topics, **request},
        }
    )


def back_up(config: Config, **options: Any) -> BackupReport:
    """One run, without Spark."""
    with without_spark(), engine.Backup(config, **options) as backup:
        return backup.run()


def settles(config: Config) -> bool:
    """Whether a run finds no news at last. Groups of other tests may come to rest meanwhile, which is news as well."""
    return any(not back_up(config).committed for _ in range(10))


def back_up_while(config: Config, act: Callable[[], object], *, after_chunks: int = 0, **options: Any) -> BackupReport:
    """One run, in the middle of which something happens: after planning, or after so many chunks have been read."""
    remaining = [after_chunks]
    read_range = task_module.read_range  # type: ignore[attr-defined]

    def reading(*arguments: Any, **more: Any) -> Iterator[Any]:
        for chunk in read_range(*arguments, **more):
            yield chunk
            remaining[0] -= 1
            if remaining[0] == 0:
                act()

    def job(task: object, settings: TaskSettings, *more: Any, **options: Any) -> list[Outcome]:
        if remaining[0] == 0:
            remaining[0] = -1
            act()
        return run_here(task, replace(settings, fetch_bytes=1), *more, **options)

    with (
        without_spark(job),
        patch.object(task_module, "read_range", reading),
        engine.Backup(config, **options) as backup,
    ):
        return backup.run()


def back_up_on(session: Any, config: Config) -> BackupReport:
    """One run on a real session."""
    with engine.Backup(config, session=session) as backup:
        return backup.run()


def kinds(report: BackupReport) -> list[str]:
    return [notice.kind for notice in report.notices]

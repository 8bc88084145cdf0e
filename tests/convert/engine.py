"""Runs conversions and backups in other layouts in this process: the Spark session is all that is left out."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from maxbrod.archive.foreign_target import TargetRequest
from maxbrod.backup import base as backup_base
from maxbrod.backup import foreign as backing_up
from maxbrod.backup.choosing import target_request
from maxbrod.config import Config, SparkConfig, StorageConfig
from maxbrod.convert import proof as proving
from maxbrod.convert import run as converting
from maxbrod.transfer import job as transferring
from support.sparkless import no_session, run_tasks_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from maxbrod.backup.report import BackupReport
    from maxbrod.convert.report import ConvertReport
    from maxbrod.transfer.task import TransferItem, Transferred, TransferSettings


def run_job_here(
    _: object,
    settings: TransferSettings,
    tasks: Sequence[Sequence[TransferItem]],
    *,
    on_done: Callable[[int], None] | None = None,
) -> list[Transferred]:
    del on_done
    with patch.object(transferring, "run_tasks", run_tasks_here):
        return transferring.run_transfer_job(None, settings, tasks)


@contextmanager
def without_spark(job: Callable[..., list[Transferred]] = run_job_here) -> Iterator[None]:
    with (
        patch.object(converting, "run_transfer_job", job),
        patch.object(backing_up, "run_transfer_job", job),
        patch.object(proving, "run_tasks", run_tasks_here),
        patch.object(converting, "open_configured", no_session),
        patch.object(backup_base, "open_configured", no_session),
        patch.object(converting, "parallelism_of", lambda *_: 2),
        patch.object(backup_base, "parallelism_of", lambda *_: 2),
    ):
        yield


def convert(source: object, target: object, to: str, **options: Any) -> ConvertReport:
    """One conversion, without Spark. `options` are fields of TargetRequest, or of ConvertRequest; and `stop`."""
    stop = options.pop("stop", None)
    of_request = {
        name: options.pop(name)
        for name in ("topics", "source_layout", "source_extra", "verify", "commit_bytes")
        if name in options
    }
    request = converting.ConvertRequest(
        source_url=str(source),
        source=StorageConfig(),
        target_url=str(target),
        target=StorageConfig(),
        to=TargetRequest(layout=to, **options),
        **of_request,
    )
    with without_spark(), converting.Convert(request, SparkConfig(), stop=stop) as work:
        return work.run()


def back_up_as(config: Config, layout: str, **request: Any) -> BackupReport:
    """One run of a backup in another layout, without Spark. `request` are fields of the section `backup`."""
    changed = config.model_copy(update={"layout": layout, "backup": replace(config.backup, **request)})
    with without_spark(), backing_up.ForeignBackup(changed, target_request(changed)) as work:
        return work.run()

"""Runs conversions and backups in other layouts in this process: the Spark session is all that is left out."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from maxbrod.archive.foreign_target import TargetRequest
from maxbrod.backup import foreign as backing_up
from maxbrod.backup.choosing import target_request
from maxbrod.config import Config, SparkConfig, StorageConfig
from maxbrod.convert import proof as proving
from maxbrod.convert import run as converting
from maxbrod.convert.verify_job import _verified
from maxbrod.convert.verify_job import _work as verify_work
from maxbrod.transfer.job import _transferred, _work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from maxbrod.backup.report import BackupReport
    from maxbrod.convert.report import ConvertReport
    from maxbrod.convert.verify_task import Verified, VerifyItem, VerifySettings
    from maxbrod.transfer.task import TransferItem, Transferred, TransferSettings


def run_job_here(
    _: object,
    settings: TransferSettings,
    tasks: Sequence[Sequence[TransferItem]],
    *,
    on_done: Callable[[int], None] | None = None,
) -> list[Transferred]:
    """What Spark does with tasks, one after another: text in, text out."""
    del on_done
    answers = [_work(settings, json.dumps([asdict(item) for item in task])) for task in tasks]
    return [_transferred(values) for answer in answers for values in json.loads(answer)]


def verify_here(_: object, settings: VerifySettings, tasks: Sequence[Sequence[VerifyItem]]) -> list[Verified]:
    answers = [verify_work(settings, json.dumps([asdict(item) for item in task])) for task in tasks]
    return [_verified(values) for answer in answers for values in json.loads(answer)]


@contextmanager
def without_spark(job: Callable[..., list[Transferred]] = run_job_here) -> Iterator[None]:
    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield None

    with (
        patch.object(converting, "run_transfer_job", job),
        patch.object(backing_up, "run_transfer_job", job),
        patch.object(proving, "run_verify_job", verify_here),
        patch.object(converting, "open_configured", nothing),
        patch.object(backing_up, "open_configured", nothing),
        patch.object(converting, "parallelism_of", lambda *_: 2),
        patch.object(backing_up, "parallelism_of", lambda *_: 2),
    ):
        yield


def convert(source: object, target: object, to: str, **options: Any) -> ConvertReport:
    """One conversion, without Spark. `options` are fields of TargetWish, or of ConvertRequest; and `stop`."""
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

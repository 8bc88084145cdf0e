"""Runs conversions and backups in other layouts in this process: the Spark session is all that is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from maxbrod.archive.foreign_target import TargetRequest
from maxbrod.backup import foreign as backing_up
from maxbrod.backup.variants import target_request
from maxbrod.config import Config, SparkConfig, StorageConfig
from maxbrod.convert import run as converting
from support.sparkless import without_spark

if TYPE_CHECKING:
    from maxbrod.backup.report import BackupReport
    from maxbrod.convert.report import ConvertReport


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

"""Runs conversions and backups in other layouts in this process: the Spark session is all that is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from maxbrod.backup import foreign as backing_up
from maxbrod.backup.follow import target_request
from maxbrod.config import Config
from maxbrod.convert.options import ConvertOptions
from maxbrod.convert.verb import Conversion
from maxbrod.work.work import Work
from support.sparkless import without_spark

if TYPE_CHECKING:
    from maxbrod.backup.report import BackupReport
    from maxbrod.convert.verb import ConvertReport


def convert(source: object, target: object, to: str, **options: Any) -> ConvertReport:
    """One conversion, without Spark. `options` are those of the verb; and `stop` and `commit_bytes`."""
    stop = options.pop("stop", None)
    more = {name: options.pop(name) for name in ("commit_bytes",) if name in options}
    names = {"source_layout": "from_layout", "source_extra": "from_options", "extra": "layout_options"}
    given = {names.get(name, name): value for name, value in options.items()}
    asked = ConvertOptions(source=str(source), target=str(target), to=to, **given)
    with without_spark(), Work(Config(), stop=stop) as work:
        return Conversion(work, asked, **more).run()


def back_up_as(config: Config, layout: str, **request: Any) -> BackupReport:
    """One run of a backup in another layout, without Spark. `request` are fields of the section `backup`."""
    changed = config.model_copy(update={"layout": layout, "backup": replace(config.backup, **request)})
    with without_spark(), backing_up.ForeignBackup(changed, target_request(changed)) as work:
        return work.run()

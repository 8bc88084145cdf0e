"""The backup as a Python function, with the options of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from maxbrod.backup.run import Backup
from maxbrod.config import Config, KafkaConfig, StorageConfig, config_with
from maxbrod.work.progress import OnProgress, silent

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping
    from pathlib import Path

    from maxbrod.backup.keywords import BackupKeywords
    from maxbrod.backup.report import BackupReport
    from maxbrod.work.session import Session


def backup(
    *,
    bootstrap: str | None = None,
    archive: str | Path | None = None,
    config: Config | Path | str | None = None,
    kafka: KafkaConfig | Mapping[str, str] | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    stop: threading.Event | None = None,
    **options: Unpack[BackupKeywords],
) -> BackupReport:
    """Bring an archive up to date, with one run.

    Args:
        bootstrap: `host:port`, several separated by commas.
        archive: a folder or a URL.
        config: a configuration, or the path of a configuration file. All other arguments override it.
        kafka: how to reach the cluster, or client properties of Kafka's own tools.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use. It stays open.
        on_progress: called with each step.
        stop: when set, the run ends at its next commit.
        options: the options of `maxbrod backup`, such as `topics` or `compression`; docs/reference has them all.

    Returns:
        The report. Check `.complete`: partitions that could not be read are reported there, not raised.

    Raises:
        MaxbrodError: nothing could be done; `maxbrod.errors` has the kinds.
    """
    whole = config_with(config, "backup", options, archive=archive, bootstrap=bootstrap, kafka=kafka, storage=storage)
    with Backup(whole, session=session, on_progress=on_progress, stop=stop) as work:
        return work.run()

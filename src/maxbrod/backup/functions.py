"""The backup as a plain function, for Python programs: as small as the command line, with the same words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from maxbrod.archive.selection import words_of
from maxbrod.backup.run import Backup
from maxbrod.config import BackupConfig, Config, KafkaConfig, complaints, kafka_config, load_config
from maxbrod.engine.progress import silent
from maxbrod.errors import UsageError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping

    from maxbrod.backup.report import BackupReport
    from maxbrod.config import StorageConfig
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session


def backup(
    *,
    bootstrap: str | None = None,
    archive: str | Path | None = None,
    topics: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    config: Config | Path | str | None = None,
    kafka: KafkaConfig | Mapping[str, str] | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    stop: threading.Event | None = None,
    **options: Any,  # noqa: ANN401 - settings of any type
) -> BackupReport:
    """Bring an archive up to the present, once.

    Args:
        bootstrap: `host:port`, several with commas.
        archive: a folder or a URL.
        topics: names, globs, or regular expressions between slashes; all topics without.
        exclude: the same, for topics to leave out.
        config: a configuration, or the YAML file that has it; what else is given here wins over it.
        kafka: how to reach the cluster, or the client properties of Kafka's own tools.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use, which stays open.
        on_progress: is called with each step.
        stop: ends the run at its next commit when it is set.
        options: any other field of `maxbrod.config.BackupConfig`, such as `start` or `compression`.

    Returns:
        The report. Look at `.complete`: what could not be read is told there, not raised.

    Raises:
        MaxbrodError: nothing could be done; `maxbrod.errors` has the kinds.
    """
    base = config if isinstance(config, Config) else Config() if config is None else load_config(Path(config))
    request = {"topics": words_of(topics), "exclude": words_of(exclude)}
    changed = {
        "archive": str(archive) if archive is not None else base.archive,
        "kafka": kafka_config(base.kafka, kafka, bootstrap),
        "storage": storage or base.storage,
        "backup": _section(base.backup, {**{name: each for name, each in request.items() if each}, **options}),
    }
    whole = base.model_copy(update=changed)
    with Backup(whole, session=session, on_progress=on_progress, stop=stop) as work:
        return work.run()


def _section(base: BackupConfig, given: Mapping[str, Any]) -> BackupConfig:
    try:
        return BackupConfig.model_validate({**base.model_dump(), **given})
    except ValidationError as error:
        raise UsageError(f"an argument is wrong: {complaints(error)}", operation="back up") from None

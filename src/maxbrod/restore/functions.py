"""The restore as a plain function, for Python programs: as small as the command line, with the same words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxbrod.archive.selection import words_of
from maxbrod.archive.words import parse_time_ms
from maxbrod.config import Config, kafka_config, load_config
from maxbrod.engine.progress import silent
from maxbrod.restore.plan.rename import parse_rename
from maxbrod.restore.plan.request import RestoreRequest, parse_offsets, request_options
from maxbrod.restore.run import Restore

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from maxbrod.config import KafkaConfig, StorageConfig
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session
    from maxbrod.restore.report import RestoreReport


def restore(
    *,
    archive: str | Path | None = None,
    bootstrap: str | None = None,
    topics: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    groups: str | Iterable[str] = (),
    since: str | int | datetime | None = None,
    until: str | int | datetime | None = None,
    offsets: str = "auto",
    rename: str | Iterable[str] | Mapping[str, str] = (),
    prefix: str = "",
    suffix: str = "",
    config: Config | Path | str | None = None,
    kafka: KafkaConfig | Mapping[str, str] | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    stop: threading.Event | None = None,
    **options: Any,  # noqa: ANN401 - settings of any type
) -> RestoreReport:
    """Restore topics of an archive into a cluster; or go on with a restore that the same call has begun.

    Args:
        archive: a folder or a URL.
        bootstrap: of the cluster to restore into; `host:port`, several with commas.
        topics: names, globs, or regular expressions between slashes, which match the whole name; all topics without.
        exclude: the same, for topics to leave out.
        groups: the same, for groups that are to stand where they stood.
        since: only records of this time and later: a time with its zone, as text too, or milliseconds since 1970.
        until: only records before this time.
        offsets: exact, append, or auto.
        rename: other names: from old to new, or the words of `--rename`.
        prefix: is put before every name that `rename` does not list.
        suffix: is put after it.
        config: a configuration, or the YAML file that has it; what else is given here wins over it.
        kafka: how to reach the cluster, or the client properties of Kafka's own tools.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use, which stays open.
        on_progress: is called with each step.
        stop: ends the restore when it is set, which raises IncompleteError; the same call goes on.
        options: any other field of `maxbrod.restore.plan.request.RestoreRequest`, such as `with_acls` or `strict`.

    Returns:
        The report. Look at `.complete`: what could not be restored is told there, not raised.

    Raises:
        MaxbrodError: nothing was changed, or it was stopped; `maxbrod.errors` has the kinds.
    """
    base = config if isinstance(config, Config) else Config() if config is None else load_config(Path(config))
    words = [f"{old}={new}" for old, new in rename.items()] if isinstance(rename, Mapping) else words_of(rename)
    request = RestoreRequest(
        topics=words_of(topics),
        exclude=words_of(exclude),
        groups=words_of(groups),
        since_ms=None if since is None else parse_time_ms(_time(since)),
        until_ms=None if until is None else parse_time_ms(_time(until)),
        offsets=parse_offsets(offsets),
        rename=parse_rename(words, prefix=prefix, suffix=suffix),
        **request_options(options, "restore", taken=("since_ms", "until_ms")),
    )
    changed = {
        "archive": str(archive) if archive is not None else base.archive,
        "kafka": kafka_config(base.kafka, kafka, bootstrap),
        "storage": storage or base.storage,
    }
    whole = base.model_copy(update=changed)
    with Restore(whole, request, session=session, on_progress=on_progress, stop=stop) as work:
        return work.run(work.plan())


def _time(given: str | int | datetime) -> str:
    return given.isoformat() if isinstance(given, datetime) else str(given)

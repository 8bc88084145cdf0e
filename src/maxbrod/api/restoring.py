"""The restore as a plain function, for Python programs: as small as the command line, with the same words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maxbrod.api.functions import kafka_config
from maxbrod.api.progress import silent
from maxbrod.api.restore import Restore
from maxbrod.config import Config, load_config
from maxbrod.errors import UsageError
from maxbrod.planning.restore.rename import parse_rename
from maxbrod.planning.restore.wish import Wish, parse_offsets, parse_range, parse_time_ms

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from maxbrod.api.progress import OnProgress
    from maxbrod.api.restore_report import RestoreReport
    from maxbrod.config import KafkaConfig, StorageConfig
    from maxbrod.spark.session import Session

_WISH_OPTIONS: Final = frozenset(each.name for each in fields(Wish)) - {
    *("topics", "exclude", "groups", "since_ms", "until_ms", "offsets", "rename")
}


def restore(
    *,
    archive: str | Path | None = None,
    bootstrap: str | None = None,
    topics: Iterable[str] = (),
    exclude: Iterable[str] = (),
    groups: Iterable[str] = (),
    since: str | int | datetime | None = None,
    until: str | int | datetime | None = None,
    offsets: str = "auto",
    rename: Iterable[str] | Mapping[str, str] = (),
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
        topics: names, globs, or regular expressions between slashes; all topics without.
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
        options: any other field of `maxbrod.planning.restore.wish.Wish`, such as `with_acls` or `strict`.

    Returns:
        The report. Look at `.complete`: what could not be restored is told there, not raised.

    Raises:
        MaxbrodError: nothing was changed, or it was stopped; `maxbrod.errors` has the kinds.
    """
    base = config if isinstance(config, Config) else Config() if config is None else load_config(Path(config))
    words = [f"{old}={new}" for old, new in rename.items()] if isinstance(rename, Mapping) else rename
    wish = Wish(
        topics=tuple(topics),
        exclude=tuple(exclude),
        groups=tuple(groups),
        since_ms=None if since is None else parse_time_ms(_time(since)),
        until_ms=None if until is None else parse_time_ms(_time(until)),
        offsets=parse_offsets(offsets),
        rename=parse_rename(words, prefix=prefix, suffix=suffix),
        **_wish_options(options),
    )
    changed = {
        "archive": str(archive) if archive is not None else base.archive,
        "kafka": kafka_config(base.kafka, kafka, bootstrap),
        "storage": storage or base.storage,
    }
    whole = base.model_copy(update=changed)
    with Restore(whole, wish, session=session, on_progress=on_progress, stop=stop) as work:
        return work.run(work.plan())


def _wish_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a wish that are not arguments of their own; lists and words where it has sets and values."""
    unknown = sorted(set(given) - _WISH_OPTIONS)
    if unknown:
        hint = f"there are {', '.join(sorted(_WISH_OPTIONS))}"
        raise UsageError(f"a restore has no option {unknown[0]}", operation="restore", hint=hint)
    found = dict(given)
    for name in {"partitions", "topic_ids"} & found.keys():
        found[name] = frozenset(found[name])
    if "ranges" in found:
        found["ranges"] = tuple(parse_range(each) if isinstance(each, str) else each for each in found["ranges"])
    return found


def _time(given: str | int | datetime) -> str:
    return given.isoformat() if isinstance(given, datetime) else str(given)

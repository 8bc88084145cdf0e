"""The use cases as plain functions, for Python programs: as small as the command line, with the same words."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from maxbrod.archive.selection import words_of
from maxbrod.backup.run import Backup
from maxbrod.compare.plan.pairs import DIFFERENCES_DEFAULT, CompareWish, parse_fields, parse_match
from maxbrod.compare.run import Comparison
from maxbrod.config import BackupConfig, Config, KafkaConfig, complaints, from_java_properties, load_config
from maxbrod.engine.progress import silent
from maxbrod.errors import UsageError
from maxbrod.restore.plan.rename import parse_rename
from maxbrod.restore.plan.wish import OffsetRange, Wish, parse_partitions, parse_range

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping

    from maxbrod.backup.report import BackupReport
    from maxbrod.compare.report import CompareReport
    from maxbrod.config import StorageConfig
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session


_WISH_OPTIONS: Final = frozenset(each.name for each in fields(Wish)) - {
    *("topics", "exclude", "groups", "offsets", "rename"),
}


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
    wish = {"topics": words_of(topics), "exclude": words_of(exclude)}
    changed = {
        "archive": str(archive) if archive is not None else base.archive,
        "kafka": kafka_config(base.kafka, kafka, bootstrap),
        "storage": storage or base.storage,
        "backup": _section(base.backup, {**{name: each for name, each in wish.items() if each}, **options}),
    }
    whole = base.model_copy(update=changed)
    with Backup(whole, session=session, on_progress=on_progress, stop=stop) as work:
        return work.run()


def compare(
    *,
    bootstrap: str | None = None,
    archive: str | Path | None = None,
    topics: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    rename: str | Iterable[str] = (),
    prefix: str = "",
    suffix: str = "",
    restore: str | None = None,
    offsets: str = "auto",
    ignore: str | Iterable[str] = (),
    differences: int = DIFFERENCES_DEFAULT,
    source: KafkaConfig | Mapping[str, str] | str | None = None,
    config: Config | Path | str | None = None,
    kafka: KafkaConfig | Mapping[str, str] | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    **selection: Any,  # noqa: ANN401 - fields of any type
) -> CompareReport:
    """Compare live topics with an archive, or with those of another cluster: every record, every field.

    Args:
        bootstrap: the cluster whose topics are the target.
        archive: what they are compared with, unless `source` is given.
        topics: of the source: names, globs, or regular expressions between slashes; all without.
        exclude: the same, for topics to leave out.
        rename: what topics are called at the target, such as `orders=orders-copy`.
        prefix: what the target's names have before the source's.
        suffix: what they have behind them.
        restore: the restore that made the target; without, it is looked for.
        offsets: auto, exact, append or set.
        ignore: fields that may differ, such as `timestamp`.
        differences: how many are told.
        source: another cluster: `host:port`, or how to reach it.
        config: a configuration, or the YAML file that has it; what else is given here wins over it.
        kafka: how to reach the target, or the client properties of Kafka's own tools.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use, which stays open.
        on_progress: is called with each step.
        selection: any other field of `maxbrod.restore.plan.wish.Wish`, such as `since_ms` or `partitions`.

    Returns:
        The report. Look at `.equal`: what differs, or could not be read, is told there, not raised.

    Raises:
        MaxbrodError: nothing could be compared.
    """
    base = config if isinstance(config, Config) else Config() if config is None else load_config(Path(config))
    changed = {
        "archive": str(archive) if archive is not None else base.archive,
        "kafka": kafka_config(base.kafka, kafka, bootstrap),
        "storage": storage or base.storage,
    }
    renamed = parse_rename(words_of(rename), prefix=prefix, suffix=suffix)
    wish = CompareWish(
        selection=Wish(
            topics=words_of(topics), exclude=words_of(exclude), rename=renamed, **wish_options(selection, "comparison")
        ),
        match=parse_match(offsets),
        ignored=parse_fields(words_of(ignore)),
        differences=differences,
        restore=restore,
    )
    other = KafkaConfig(bootstrap=source) if isinstance(source, str) else kafka_config(None, source, None)
    whole = base.model_copy(update=changed)
    with Comparison(whole, wish, source=other, session=session, on_progress=on_progress) as work:
        return work.run()


def wish_options(given: Mapping[str, Any], what: str, taken: Iterable[str] = ()) -> dict[str, Any]:
    """Fields of a wish that are not arguments of their own; lists and words where it has sets and values."""
    known = _WISH_OPTIONS - {*taken}
    unknown = sorted(set(given) - known)
    if unknown:
        hint = f"there are {', '.join(sorted(known))}"
        raise UsageError(f"a {what} has no option {unknown[0]}", operation=what, hint=hint)
    found = dict(given)
    if "partitions" in found:
        numbers = found["partitions"]
        numbers = [numbers] if isinstance(numbers, int) else numbers
        found["partitions"] = parse_partitions(numbers) if isinstance(numbers, str) else frozenset(numbers)
    if "topic_ids" in found:
        found["topic_ids"] = frozenset(words_of(found["topic_ids"]))
    if "ranges" in found:
        ranges = [found["ranges"]] if isinstance(found["ranges"], str | OffsetRange) else found["ranges"]
        found["ranges"] = tuple(parse_range(each) if isinstance(each, str) else each for each in ranges)
    return found


def kafka_config(
    base: KafkaConfig | None, given: KafkaConfig | Mapping[str, str] | None, bootstrap: str | None
) -> KafkaConfig | None:
    if given is not None and not isinstance(given, KafkaConfig):
        given = from_java_properties({**given, **({} if bootstrap is None else {"bootstrap.servers": bootstrap})})
    found = given or base
    if bootstrap is None:
        return found
    return KafkaConfig(bootstrap=bootstrap) if found is None else found.model_copy(update={"bootstrap": bootstrap})


def _section(base: BackupConfig, given: Mapping[str, Any]) -> BackupConfig:
    try:
        return BackupConfig.model_validate({**base.model_dump(), **given})
    except ValidationError as error:
        raise UsageError(f"an argument is wrong: {complaints(error)}", operation="back up") from None

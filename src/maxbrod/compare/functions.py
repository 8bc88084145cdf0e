"""The comparison as a plain function, for Python programs: as small as the command line, with the same words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxbrod.archive.selection import words_of
from maxbrod.compare.plan.pairs import DIFFERENCES_DEFAULT, CompareRequest, parse_fields, parse_match
from maxbrod.compare.run import Comparison
from maxbrod.config import Config, KafkaConfig, kafka_config, load_config
from maxbrod.engine.progress import silent
from maxbrod.restore.plan.rename import parse_rename
from maxbrod.restore.plan.request import RestoreRequest, request_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maxbrod.compare.report import CompareReport
    from maxbrod.config import StorageConfig
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session


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
        selection: any other field of `maxbrod.restore.plan.request.RestoreRequest`, such as `since_ms` or `partitions`.

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
    request = CompareRequest(
        selection=RestoreRequest(
            topics=words_of(topics),
            exclude=words_of(exclude),
            rename=renamed,
            **request_options(selection, "comparison"),
        ),
        match=parse_match(offsets),
        ignored=parse_fields(words_of(ignore)),
        differences=differences,
        restore=restore,
    )
    other = KafkaConfig(bootstrap=source) if isinstance(source, str) else kafka_config(None, source, None)
    whole = base.model_copy(update=changed)
    with Comparison(whole, request, source=other, session=session, on_progress=on_progress) as work:
        return work.run()

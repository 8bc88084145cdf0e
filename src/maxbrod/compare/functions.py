"""The comparison as a Python function, with the options of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from maxbrod.compare.plan.pairs import CompareRequest, parse_fields, parse_match
from maxbrod.compare.run import Comparison
from maxbrod.config import Config, KafkaConfig, StorageConfig, config_with, kafka_config
from maxbrod.restore.functions import selection_of
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.work.progress import OnProgress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from maxbrod.compare.keywords import CompareKeywords
    from maxbrod.compare.options import CompareOptions
    from maxbrod.compare.report import CompareReport
    from maxbrod.work.session import Session


def compare(
    *,
    bootstrap: str | None = None,
    archive: str | Path | None = None,
    source: KafkaConfig | Mapping[str, str] | str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    config: Config | Path | str | None = None,
    kafka: KafkaConfig | Mapping[str, str] | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    **options: Unpack[CompareKeywords],
) -> CompareReport:
    """Compare live topics with an archive, or with those of another cluster: every record, every field.

    Args:
        bootstrap: the cluster whose topics are the target.
        archive: the archive to compare with, unless `source` is given.
        source: another cluster to compare with: `host:port`, or how to reach it.
        since_ms: `since` in milliseconds.
        until_ms: `until` in milliseconds.
        config: a configuration, or the path of a configuration file. All other arguments override it.
        kafka: how to reach the target, or client properties of Kafka's own tools.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use. It stays open.
        on_progress: called with each step.
        options: the options of `maxbrod compare`, such as `topics` or `ignore`; docs/reference has them all.

    Returns:
        The report. Check `.equal`: differences, and what could not be read, are reported there, not raised.

    Raises:
        MaxbrodError: nothing could be compared.
    """
    if since_ms is not None:
        options["since"] = since_ms
    if until_ms is not None:
        options["until"] = until_ms
    whole = config_with(config, "compare", options, archive=archive, bootstrap=bootstrap, kafka=kafka, storage=storage)
    other = KafkaConfig(bootstrap=source) if isinstance(source, str) else kafka_config(None, source, None)
    request = compare_request_of(whole.compare)
    with Comparison(whole, request, source=other, session=session, on_progress=on_progress) as work:
        return work.run()


def compare_request_of(options: CompareOptions) -> CompareRequest:
    """UsageError: a value has no meaning, or two contradict each other."""
    return CompareRequest(
        selection=RestoreRequest(**selection_of(options)),
        match=parse_match(options.offsets),
        ignored=parse_fields(options.ignore),
        differences=options.differences,
        restore=options.restore,
    )

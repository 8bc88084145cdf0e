"""The restore as a Python function, with the options of the command line."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from maxbrod.archive.renames import parse_rename
from maxbrod.archive.selection import parse_partitions, parse_time_ms
from maxbrod.config import Config, KafkaConfig, StorageConfig, config_with
from maxbrod.options import SelectionOptions
from maxbrod.restore.options import RestoreOptions
from maxbrod.restore.plan.request import (
    BatchesMode,
    OffsetsMode,
    RestoreRequest,
    parse_partition_counts,
    parse_range,
    parse_word,
)
from maxbrod.restore.report import RestoreReport
from maxbrod.restore.run import Restore
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.session import Session
from maxbrod.work.work import Work

if TYPE_CHECKING:
    from maxbrod.keywords import RestoreKeywords


def restore(
    *,
    archive: str | Path | None = None,
    bootstrap: str | None = None,
    config: Config | Path | str | None = None,
    kafka: KafkaConfig | Mapping[str, str] | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    stop: threading.Event | None = None,
    **options: Unpack[RestoreKeywords],
) -> RestoreReport:
    """Restore topics of an archive into a cluster, or resume a restore that the same call has begun.

    Args:
        archive: a folder or a URL.
        bootstrap: the cluster to restore into: `host:port`, several separated by commas.
        config: a configuration, or the path of a configuration file. All other arguments override it.
        kafka: how to reach the cluster, or client properties of Kafka's own tools.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use. It stays open.
        on_progress: called with each step.
        stop: when set, the restore ends and raises IncompleteError. The same call resumes it.
        options: the options of `maxbrod restore`, such as `topics`, `groups` or `offsets`; docs/reference has them all.

    Returns:
        The report. Check `.complete`: partitions that could not be restored are reported there, not raised.

    Raises:
        MaxbrodError: nothing was changed, or the restore was stopped; `maxbrod.errors` has the kinds.
    """
    whole = config_with(config, "restore", options, archive=archive, bootstrap=bootstrap, kafka=kafka, storage=storage)
    with (
        Work(whole, session=session, on_progress=on_progress, stop=stop) as work,
        Restore(work, request_of(whole.restore)) as restore,
    ):
        return restore.run(restore.plan())


def request_of(options: RestoreOptions) -> RestoreRequest:
    """UsageError: a value has no meaning, or two contradict each other."""
    counts = (*options.partition_count, *(f"{topic}={count}" for topic, count in options.partition_counts.items()))
    everywhere, by_topic = parse_partition_counts(counts)
    taken = {field.name for field in fields(RestoreRequest)}
    return RestoreRequest(
        **{name: value for name, value in vars(options).items() if name in taken}
        | selection_of(options)
        | {
            "partition_count": everywhere,
            "partition_counts": by_topic,
            "offsets": parse_word(OffsetsMode, "offsets", options.offsets),
            "batches": parse_word(BatchesMode, "batches", options.batches),
        }
    )


def selection_of(options: SelectionOptions) -> dict[str, Any]:
    """The fields of a request that select records and name target topics."""
    return {
        "topics": options.topics,
        "exclude": options.exclude,
        "internal": options.internal,
        "partitions": frozenset() if options.partitions is None else parse_partitions(options.partitions),
        "ranges": tuple(map(parse_range, options.ranges)),
        "since_ms": None if options.since is None else parse_time_ms(options.since),
        "until_ms": None if options.until is None else parse_time_ms(options.until),
        "as_of": options.as_of,
        "topic_ids": frozenset(options.topic_ids),
        "rename": parse_rename(options.rename, prefix=options.prefix, suffix=options.suffix),
    }

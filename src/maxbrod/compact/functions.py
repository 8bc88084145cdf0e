"""The compaction as a Python function, with the options of the command line."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - for those who look at the annotations
from typing import TYPE_CHECKING, Unpack

from maxbrod.compact.verb import compact_archive
from maxbrod.config import Config, StorageConfig, config_with
from maxbrod.work.progress import OnProgress, silent

if TYPE_CHECKING:
    from maxbrod.compact.keywords import CompactKeywords
    from maxbrod.compact.report import CompactReport
    from maxbrod.work.session import Session


def compact(
    *,
    archive: str | Path | None = None,
    config: Config | Path | str | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    **options: Unpack[CompactKeywords],
) -> CompactReport:
    """Merge small segments of an archive into large ones. No record and no offset changes.

    With `by_key=True`: keep only the newest record of each key of compacted topics.

    Args:
        archive: a folder or a URL, in maxbrod's own layout or in the layout parquet.
        config: a configuration, or the path of a configuration file. All other arguments override it.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use. It stays open.
        on_progress: called with each step.
        options: the options of `maxbrod compact`, such as `topics` or `min_segment_size`; docs/reference has them all.

    Returns:
        The report. Check `.exit_code`: damaged segments are reported in `.faults`, not raised.

    Raises:
        MaxbrodError: nothing could be compacted.
    """
    whole = config_with(config, "compact", options, archive=archive, storage=storage)
    return compact_archive(whole, session=session, on_progress=on_progress)

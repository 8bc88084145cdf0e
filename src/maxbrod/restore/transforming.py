"""What a restore does about `--where` and `--select`: has them checked before anything is touched, and the records
staged before anything is restored.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from maxbrod.engine.progress import Progress, silent
from maxbrod.engine.session import open_configured, parallelism_of
from maxbrod.errors import MaxbrodError
from maxbrod.restore.staged_objects import stagings_done
from maxbrod.restore.staging import Staging, changes_in, remove_staged, staging_url
from maxbrod.transform.frame import check_transform
from maxbrod.transform.plan import TransformPlan

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from maxbrod.archive.opening import Archive
    from maxbrod.config import Config
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session
    from maxbrod.restore.plan.plan import RestorePlan
    from maxbrod.restore.plan.request import RestoreRequest


@contextmanager
def transform_session(
    config: Config, request: RestoreRequest, *, on_progress: OnProgress = silent
) -> Iterator[Session | None]:
    """A session for a plan and for the restore that follows; None where expressions do not need one."""
    if request.transform is None:
        yield None
        return
    on_progress(Progress(phase="starting Spark"))
    with open_configured(config.spark, jvm_works=True) as opened:
        yield opened


def plan_transform(
    session: Session, archive: Archive, request: RestoreRequest, restore_id: str
) -> TransformPlan | None:
    """UsageError: the expressions are none, or not over the columns of the table."""
    if request.transform is None:
        return None
    return TransformPlan(
        where=request.where,
        select=request.select,
        fields=check_transform(session, request.transform),
        staging=staging_url(archive, restore_id, request.staging),
    )


def stage(
    session: Session,
    config: Config,
    archive: Archive,
    request: RestoreRequest,
    plan: RestorePlan,
    planned: TransformPlan,
    *,
    on_progress: OnProgress,
    stop: threading.Event,
) -> tuple[Archive, TransformPlan]:
    """The records as they will be restored, in an archive of their own; and what was changed."""
    transform = request.transform
    assert transform is not None, "a plan with a transformation comes of a request for one"  # noqa: S101 - our own mistake
    archive.storage.delete(stagings_done(archive.storage))
    on_progress(Progress(phase="transforming"))
    staging = Staging(
        source=archive,
        url=planned.staging,
        storage=config.storage,
        transform=transform,
        since_ms=request.since_ms,
        until_ms=request.until_ms,
    )
    staged = staging.run(
        session,
        [each.source for topic in plan.topics for each in topic.partitions],
        parallelism=parallelism_of(config.spark.master, session),
        on_progress=on_progress,
        stop=stop,
    )
    return staged, replace(planned, topics=changes_in(staged))


def as_staged(request: RestoreRequest, planned: TransformPlan) -> RestoreRequest:
    """The same of records that were staged: where their times are others, they were chosen by those that they had."""
    return replace(request, since_ms=None, until_ms=None) if "timestamp" in planned.fields else request


def clear_staging(config: Config, planned: TransformPlan) -> str | None:
    """Once all is restored. What cannot be removed is told, and spoils nothing."""
    try:
        remove_staged(planned.staging, config.storage)
    except MaxbrodError as error:
        return f"the staged records could not be removed: {error}"
    return None

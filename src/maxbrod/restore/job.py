"""The restore job: items go to the tasks, and where the logs of their partitions end comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.restore.repartition.items import SharedItem
from maxbrod.restore.task import Restored, RestoreItem, RestoreSettings, run_restore_task

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from maxbrod.work.executor import Executor, TasksDone


def run_restore_tasks(
    executor: Executor,
    settings: RestoreSettings,
    tasks: Sequence[Sequence[RestoreItem | SharedItem]],
    *,
    on_done: TasksDone | None = None,
    stop: threading.Event | None = None,
) -> list[Restored]:
    """Return the outcome of every item. UnavailableError: `stop` was set before the tasks had finished."""
    name = f"restore-{settings.restore_id}"
    # Each partition has one writer. Two attempts side by side would not duplicate records, which have sequence
    # numbers, but they would duplicate the markers in holes, which have none.
    return executor.run(restore_items, settings, tasks, name=name, on_done=on_done, stop=stop, alone=True)


def restore_items(settings: RestoreSettings, items: Sequence[RestoreItem | SharedItem]) -> list[Restored]:
    """Restore the items of one task."""
    own = tuple(item for item in items if isinstance(item, RestoreItem))
    restored = run_restore_task(settings, own) if own else []
    for item in items:
        if isinstance(item, SharedItem):
            # Loads numba, which a restore that keeps every record's partition does not need.
            from maxbrod.restore.repartition.task import run_shared_task  # noqa: PLC0415

            restored += run_shared_task(settings, item)
    return restored

"""A worker is killed under a restore: its task runs again, and nothing is there twice.

`cluster/test_standalone.py` kills an executor, with the machine that it runs on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.restore import run as engine
from maxbrod.work.jobs import SparkExecutor
from maxbrod.work.work import Work
from support.restore_faults import archive, renamed
from support.restore_oracle import assert_restored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.restore.items import Restored, RestoreItem, RestoreSettings
    from maxbrod.sandbox.cluster import Cluster
    from support.plain_log import Record

pytestmark = pytest.mark.full

PARTITIONS = 2
Archived = tuple["Config", list[dict[int, "Record"]]]


@pytest.fixture
def archived(cluster: Cluster, topic: str, tmp_path: Path) -> Archived:
    return archive(cluster, topic, tmp_path / "archive", partitions=PARTITIONS)


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def test_a_worker_that_is_killed_leaves_nothing_twice(
    cluster: Cluster, topic: str, archived: Archived, marks: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkExecutor, "run", fateful_run(marks))
    with engine.Restore(Work(archived[0], session=spark), renamed()) as work:
        report = work.run(work.plan())
    assert report.exit_code == 0, report.partitions
    assert {"0-0-killed", "0-1-done", "1-0-done"} <= {path.name for path in marks.iterdir()}
    for partition, records in enumerate(archived[1]):
        assert_restored(cluster, f"new-{topic}", records, partition=partition)


def fateful_run(marks: Path) -> Callable[..., list[Restored]]:
    """`SparkExecutor.run` in which the first attempt of the first task dies in the middle; attempts leave marks in a
    folder."""
    really = SparkExecutor.run

    def run(
        self: SparkExecutor, _task: object, context: RestoreSettings, tasks: Sequence[Sequence[RestoreItem]], **_: Any
    ) -> list[Restored]:
        alone = [[item] for items in tasks for item in items]
        return really(self, _fateful(str(marks)), context, alone, name=context.restore_id)

    return run


def _fateful(marks: str) -> Callable[[Any, Any], Any]:
    """Made of nested functions, which travel to the workers by value: these cannot import the tests."""

    def work(settings: Any, items: Any) -> Any:
        import os  # noqa: PLC0415
        import signal  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        from pyspark import TaskContext  # noqa: PLC0415

        from maxbrod.restore import task as restore_task  # noqa: PLC0415
        from maxbrod.restore.items import restore_items  # noqa: PLC0415

        context = TaskContext.get()
        number, attempt = context.partitionId(), context.attemptNumber()
        produce_all = restore_task.produce_all  # type: ignore[attr-defined]

        def mark(what: str) -> None:
            (Path(marks) / f"{number}-{attempt}-{what}").touch()

        def dying(*arguments: Any, **options: Any) -> Any:
            for count, acknowledged in enumerate(produce_all(*arguments, **options)):
                yield acknowledged
                if count == 2:
                    mark("killed")
                    os.kill(os.getpid(), signal.SIGKILL)

        if number == 0 and attempt == 0:
            restore_task.produce_all = dying  # type: ignore[attr-defined]
        answer = restore_items(settings, items)
        mark("done")
        return answer

    return work

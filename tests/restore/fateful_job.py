"""The job of a restore in which a Python worker is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.work.jobs import SparkExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from maxbrod.restore.task import Restored, RestoreItem, RestoreSettings


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
        from maxbrod.restore.job import restore_items  # noqa: PLC0415

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

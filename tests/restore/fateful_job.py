"""The job of a restore in which a Python worker is killed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from maxbrod.restore.job import decode_answer, encode_task
from maxbrod.work.jobs import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from maxbrod.restore.task import Restored, RestoreItem, RestoreSettings


def fateful_job(marks: Path) -> Callable[..., list[Restored]]:
    """`run_restore_job` in which the first attempt of the first task dies in the middle; attempts leave marks in a
    folder."""

    def job(
        session: Any, settings: RestoreSettings, tasks: Sequence[Sequence[RestoreItem]], **_: Any
    ) -> list[Restored]:
        payloads = [encode_task([item]) for task in tasks for item in task]
        work = partial(_fateful(str(marks)), settings)
        answers = run_tasks(session, work, payloads, name=settings.restore_id)
        return [each for answer in answers for each in decode_answer(answer)]

    return job


def _fateful(marks: str) -> Callable[[Any, str], str]:
    """Made of nested functions, which travel to the workers by value: these cannot import the tests."""

    def work(settings: Any, payload: str) -> str:
        import os  # noqa: PLC0415
        import signal  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        from pyspark import TaskContext  # noqa: PLC0415

        from maxbrod.restore import task as restore_task  # noqa: PLC0415
        from maxbrod.restore.job import work as restore_work  # noqa: PLC0415

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
        answer = restore_work(settings, payload)
        mark("done")
        return answer

    return work

"""A restore on executors that are processes, one of which dies: `python -m restore.spark_program CONFIG MARKS`"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from backup.spark_program import LOOPBACK
from maxbrod.config import Config
from maxbrod.engine.jobs import run_tasks
from maxbrod.engine.session import open_session
from maxbrod.restore import run as engine
from maxbrod.restore.job import decode_answer, encode_task
from restore.faults import renamed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maxbrod.restore.task import Restored, RestoreItem, RestoreSettings


def fateful_job(fate: str, marks: Path) -> Callable[..., list[Restored]]:
    """`run_restore_job` in which the first attempt of the first task dies in the middle, with its `worker` alone or the
    whole `executor`; attempts leave marks in a folder."""

    def job(
        session: Any, settings: RestoreSettings, tasks: Sequence[Sequence[RestoreItem]], **_: Any
    ) -> list[Restored]:
        payloads = [encode_task([item]) for task in tasks for item in task]
        work = partial(_fateful(fate, str(marks)), settings)
        answers = run_tasks(session, work, payloads, name=settings.restore_id)
        return [each for answer in answers for each in decode_answer(answer)]

    return job


def _fateful(fate: str, marks: str) -> Callable[[Any, str], str]:
    """Made of nested functions, which travel to the workers by value: these cannot import the tests."""

    def work(settings: Any, payload: str) -> str:
        import os  # noqa: PLC0415
        import signal  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        import psutil  # noqa: PLC0415
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
                    if fate == "executor":
                        next(each for each in psutil.Process().parents() if each.name() == "java").kill()
                    os.kill(os.getpid(), signal.SIGKILL)

        if number == 0 and attempt == 0:
            restore_task.produce_all = dying  # type: ignore[attr-defined]
        answer = restore_work(settings, payload)
        mark("done")
        return answer

    return work


def main(config: Config, marks: Path) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with (
        open_session(master="local-cluster[2,1,1024]", conf=LOOPBACK) as session,
        patch.object(engine, "run_restore_job", fateful_job("executor", marks)),
        engine.Restore(config, renamed(), session=session) as work,
    ):
        report = work.run(work.plan())
    sys.stdout.write(f"{json.dumps(report.as_dict())}\n")


if __name__ == "__main__":
    main(Config.model_validate_json(sys.argv[1]), Path(sys.argv[2]))

"""Fates of a backup's tasks, and a driver that is killed when they are done and nothing is committed.

python -m support.programs.fateful_backup CONFIG
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from maxbrod.config import Config
from maxbrod.work.jobs import SparkExecutor
from maxbrod.work.session import open_session
from support.backups import back_up_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from maxbrod.backup.plan.ranges import Outcome, RangeItem
    from maxbrod.backup.task import TaskSettings

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
Fate = str
"""What happens to a task's first attempt: `in the middle`, `at the end`, `machine` (with its executor)."""


def fateful_run(fate: Fate, marks: Path) -> Callable[..., list[Outcome]]:
    """`SparkExecutor.run` in which the first attempt of the first task meets a fate; attempts leave marks in a folder.

    There are as many tasks as can be: others must go on while one meets its fate.
    """
    really = SparkExecutor.run

    def run(
        self: SparkExecutor, _task: object, context: TaskSettings, tasks: Sequence[Sequence[RangeItem]], **_: Any
    ) -> list[Outcome]:
        alone = [[item] for items in tasks for item in items]
        return really(self, _fateful(fate, str(marks)), context, alone, name=context.run_id)

    return run


def _fateful(fate: Fate, marks: str) -> Callable[[Any, Any], Any]:
    """Made of nested functions, which travel to the workers by value: these cannot import the tests."""

    def work(settings: Any, items: Any) -> Any:
        import os  # noqa: PLC0415
        import signal  # noqa: PLC0415
        import time  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        import psutil  # noqa: PLC0415
        from pyspark import TaskContext  # noqa: PLC0415

        from maxbrod.backup import task as backup_task  # noqa: PLC0415

        context = TaskContext.get()
        number, attempt = context.partitionId(), context.attemptNumber()
        doomed = number == 0 and attempt == 0
        read_range = backup_task.read_range  # type: ignore[attr-defined]

        def mark(what: str) -> Path:
            path = Path(marks) / f"{number}-{attempt}-{what}"
            path.touch()
            return path

        def dying_range(*arguments: Any, **options: Any) -> Any:
            for chunk in read_range(*arguments, **options):
                yield chunk
                mark("killed")
                os.kill(os.getpid(), signal.SIGKILL)

        mark("began")
        if doomed and fate == "in the middle":
            backup_task.read_range = dying_range  # type: ignore[attr-defined]
        answer = backup_task.run_backup_task(settings, items)
        mark("wrote")
        if doomed and fate == "at the end":
            os.kill(os.getpid(), signal.SIGKILL)
        if doomed and fate == "machine":
            # The worker first: it would start another executor.
            for parent in reversed([each for each in psutil.Process().parents() if each.name() == "java"]):
                parent.kill()
            time.sleep(60)
        return answer

    return work


def die(config: Config) -> None:
    really = SparkExecutor.run

    def run(*arguments: Any, **options: Any) -> None:
        really(*arguments, **options)
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    with open_session(master="local[2]") as session, patch.object(SparkExecutor, "run", run):
        back_up_on(session, config)


if __name__ == "__main__":
    die(Config.model_validate_json(sys.argv[1]))

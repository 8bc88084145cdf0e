"""A restore with expressions that is killed: `python -m support.programs.dying_transform CONFIG TOPIC FATE`

With the fate `staging` the process ends by SIGKILL when a part is staged and the next one is written but not committed;
with `restoring`, when all is staged and some of it has reached the cluster.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from maxbrod.archive.renames import parse_rename
from maxbrod.config import Config
from maxbrod.restore import run as engine
from maxbrod.restore import staging
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.transform.frame import run_transform_job
from maxbrod.work.jobs import SparkExecutor
from maxbrod.work.work import Work
from support.restore_faults import when_acknowledged
from support.sparkless import run_here

STAGE = staging.Staging.run


def with_expressions(topic: str) -> RestoreRequest:
    """A request whose values differ each time they are computed."""
    return RestoreRequest(
        topics=(topic,),
        rename=parse_rename(prefix="new-"),
        offsets=OffsetsMode.EXACT,
        where="key is null or length(key) < 12",
        select="uuid() as value",
    )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_small_waves(self: staging.Staging, *arguments: Any, **options: Any) -> Any:
    return STAGE(self, *arguments, **{**options, "commit_bytes": 1})


def dying_job(*arguments: Any, **options: Any) -> Any:
    answers = run_transform_job(*arguments, **options)
    target = arguments[1].target_url
    if staging.open_staged(target, arguments[1].target).catalog.rows().num_rows:
        die()
    return answers


def main(config: Config, topic: str, fate: str) -> None:
    with ExitStack() as stack:
        stack.enter_context(patch.object(staging.Staging, "run", in_small_waves))
        if fate == "staging":
            stack.enter_context(patch.object(staging, "run_transform_job", dying_job))
        else:
            # In this process, which is to die.
            stack.enter_context(
                patch.object(SparkExecutor, "run", lambda _, *arguments, **more: run_here(*arguments, **more))
            )
            stack.enter_context(when_acknowledged(3, die))
        work = stack.enter_context(engine.Restore(Work(config), with_expressions(topic)))
        work.run(work.plan())


if __name__ == "__main__":
    main(Config.model_validate_json(sys.argv[1]), sys.argv[2], sys.argv[3])

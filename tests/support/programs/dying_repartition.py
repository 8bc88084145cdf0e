"""A program that restores to another number of partitions, and is killed.

A configuration, a new name and the number come in as a line of JSON, then a line for each run: n. With n of 0 or more
the run dies by SIGKILL when n batches have been acknowledged; else it goes to its end. Says for each, in JSON, how that
was. Forks for each run, so all it does by itself is load the kernels.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from maxbrod.archive.renames import parse_rename
from maxbrod.batch import rewrite
from maxbrod.config import Config
from maxbrod.errors import MaxbrodError
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.prepare import prepare_batches
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.repartition import split as repartition_split
from maxbrod.restore.repartition import task as repartition_task
from support.restore_faults import restore

if TYPE_CHECKING:
    from collections.abc import Iterator


def run(settings: dict[str, Any], answers: int) -> dict[str, Any]:
    def dying(*arguments: Any, **options: Any) -> Iterator[Any]:
        for number, acknowledged in enumerate(produce_all(*arguments, **options)):
            if number == answers:
                os.kill(os.getpid(), signal.SIGKILL)
            yield acknowledged

    # Small, so that there are batches enough to die between.
    setattr(rewrite, "PORTION_BYTES", 1)  # noqa: B010 - a constant of others
    setattr(repartition_split, "ROUND_BYTES", 1000)  # noqa: B010
    setattr(repartition_task, "produce_all", dying)  # noqa: B010
    request = RestoreRequest(rename=parse_rename([settings["rename"]]), partition_count=settings["count"])
    try:
        report = restore(Config.model_validate(settings["config"]), request)
    except MaxbrodError as error:
        return error.as_dict()
    return {"exit_code": report.exit_code, "resumed": report.resumed, "records": report.records}


def main() -> None:
    settings, out = json.loads(sys.stdin.readline()), sys.stdout.fileno()
    prepare_batches()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                os.write(out, f"{json.dumps(run(settings, int(line)))}\n".encode())
            finally:
                os._exit(0)
        if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            os.write(out, b'{"killed": true}\n')


if __name__ == "__main__":
    main()

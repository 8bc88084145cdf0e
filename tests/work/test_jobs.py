"""A job gives every payload its answer, and costs a worker next to nothing besides."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.errors import StoppedError
from maxbrod.work.jobs import SparkExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def run_tasks(session: Any, function: Callable[[str], str], payloads: Sequence[str], **options: Any) -> list[str]:
    """One item a task. A nested function travels to the workers by value: these cannot import the tests."""

    def task(_context: None, items: Any) -> Any:
        return [function(item) for item in items]

    return SparkExecutor(session).run(task, None, [[payload] for payload in payloads], **options)


def test_every_payload_gets_its_own_answer_in_order(spark: Any) -> None:
    payloads = [str(number) for number in range(5)]
    assert run_tasks(spark, lambda payload: payload * 2, payloads, name="doubling") == [each * 2 for each in payloads]


def test_modules_are_never_looked_through_for_garbage_after_each_task(spark: Any) -> None:
    def frozen(_payload: str) -> str:
        import gc  # noqa: PLC0415 - in the worker

        return str(gc.get_freeze_count())

    run_tasks(spark, frozen, ["x"] * 4, name="first")
    # At least one of them goes to a worker that has done a task before; Spark may have started another.
    assert max(map(int, run_tasks(spark, frozen, ["x"] * 4, name="second"))) > 10_000


def test_a_job_that_is_stopped_ends_with_its_tasks(spark: Any, tmp_path: Path) -> None:
    stop = threading.Event()

    def endless(folder: str) -> str:
        import time  # noqa: PLC0415 - in the worker
        from pathlib import Path  # noqa: PLC0415

        mark = Path(folder) / "alive"
        while True:
            mark.write_text(str(time.monotonic()))
            time.sleep(0.05)

    class StopWhenItRuns:
        def seen(self, tasks: int, size: int) -> None:
            assert (tasks, size) == (0, 0)
            if (tmp_path / "alive").exists():
                stop.set()

    with pytest.raises(StoppedError):
        run_tasks(spark, endless, [str(tmp_path)], name="endless", meter=StopWhenItRuns(), stop=stop)
    before = (tmp_path / "alive").read_text()
    # The very worker that ran it is gone, or does other work: in either case it writes no more.
    assert run_tasks(spark, str.upper, ["still there"], name="after") == ["STILL THERE"]
    assert (tmp_path / "alive").read_text() == before


@pytest.mark.parametrize("job", ["backup.task", "restore.items"])
def test_workers_that_move_batches_load_no_pandas(job: str) -> None:
    """It would take 52 MB of each worker, and half a second."""
    code = (
        "import importlib, pickle, sys\n"
        "import numpy as np\n"
        "import pyarrow as pa\n"
        "from maxbrod.batch.columns import number_array\n"
        "from maxbrod.work.jobs import _answer\n"
        "importlib.import_module(f'maxbrod.{sys.argv[1]}')\n"
        "numbers = pa.RecordBatch.from_arrays([number_array(np.arange(2))], names=['id'])\n"
        "payloads = [pickle.dumps(['one']), pickle.dumps(['zwölf'])]\n"
        "answers = list(_answer(lambda _, items: [item.upper() for item in items], None, payloads, None, [numbers]))\n"
        "loaded = 'pandas' in sys.modules\n"
        "rows = [row for answer in answers for row in answer.to_pylist()]\n"
        "assert [(row['task'], pickle.loads(row['answer'])) for row in rows] == [(0, ['ONE']), (1, ['ZWÖLF'])]\n"
        "sys.exit(loaded)"
    )
    assert subprocess.run([sys.executable, "-c", code, job], check=False).returncode == 0

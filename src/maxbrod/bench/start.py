"""`maxbrod bench start`: the time until Spark's first work, beside PySpark's own way of starting."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from maxbrod.bench.processes import run_python
from maxbrod.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping

# From the start of the program to the first rows that came back from Python workers.
_WORK: Final = "session.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, 'id long').collect(); print(time.time())"
_BARE: Final = (
    "import time; from pyspark.sql import SparkSession\n"
    f"session = SparkSession.builder.master('local[2]').getOrCreate(); {_WORK}; session.stop()"
)
OURS: Final = (
    "import time; from maxbrod.work.session import open_session\n"
    f"with open_session(master='local[2]') as session: {_WORK}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    name: str
    median_seconds: float
    best_seconds: float
    worst_seconds: float


def measure(*, rounds: int) -> list[Start]:
    """Each way in a fresh process, in turns."""
    # PySpark uses whatever `java` and `python3` are on PATH, which may be missing or too old.
    java = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as empty:
        ways: dict[str, tuple[str, Mapping[str, str]]] = {
            "PySpark alone": (_BARE, java),
            "maxbrod, no class archive": (OURS, {"MAXBROD_CACHE": empty}),
            "maxbrod": (OURS, {}),
        }
        for _ in range(rounds):
            for name, (program, environment) in ways.items():
                seconds.setdefault(name, []).append(_seconds(program, environment))
    return [
        Start(name=name, median_seconds=median(times), best_seconds=min(times), worst_seconds=max(times))
        for name, times in seconds.items()
    ]


def _seconds(program: str, environment: Mapping[str, str]) -> float:
    started = time.time()
    return float(run_python("-c", program, environment=environment)) - started

"""A whole `maxbrod backup` of a small topic, from nothing to the end of its process, beside Spark's bare start."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.bench.figures import Figure, seconds, share
from maxbrod.bench.loads import write_load
from maxbrod.bench.race import Lap, race_laps, time_lap
from maxbrod.bench.start import OURS
from maxbrod.errors import UnavailableError
from maxbrod.sandbox.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORDS: Final = 1000


def measure_cold(*, rounds: int) -> list[Figure]:
    """Both open the session in the same way, with the same flags, and do one job in it."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder, Cluster.start(f"{folder}/cluster") as cluster:
        topic = write_load(cluster, "bench-small", RECORDS, partitions=2, json=True).topic
        archive = Path(folder) / "archive"

        def backup() -> Lap:
            shutil.rmtree(archive, ignore_errors=True)
            options = ("--bootstrap", cluster.bootstrap, "--archive", str(archive), "--topic", topic, "--quiet")
            return _lap([sys.executable, "-m", "maxbrod", "backup", *options])

        laps = race_laps({"backup": backup, "bare": lambda: _lap([sys.executable, "-c", OURS])}, rounds=rounds)
    return [
        share("cold backup over Spark's bare start", laps["backup"], laps["bare"], wanted=1.6),
        seconds("cold backup of a small topic", laps["backup"]),
        seconds("bare session, first mapInArrow, stop", laps["bare"]),
    ]


def _lap(command: Sequence[str]) -> Lap:
    return time_lap(lambda: _run(command))


def _run(command: Sequence[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise UnavailableError("a cold start failed", operation="bench", hint=ran.stderr.strip()[-500:])

"""Recognizes, in what Spark says about a failed job, a worker whose Python cannot run maxbrod's tasks."""

from __future__ import annotations

import re
from typing import Final

from maxbrod.errors import EnvironmentMissingError

HINT: Final = (
    "give the workers the driver's environment: install it, or send it ('maxbrod cluster pack') and set "
    "spark.pyspark.python; docs/cluster.md says how"
)
_LOST_TASK: Final = re.compile(r"\(TID \d+\) \(([^\s()]+) executor ([^\s():]+)\)")
_NO_PYTHON: Final = re.compile(r"Cannot run program \"([^\"]+)\"")
_NO_MODULE: Final = re.compile(r"No module named '?([A-Za-z0-9_.]+)'?")
_OTHER_PYTHON: Final = re.compile(
    r"different version:?\s*\(?\[?(?:'?(\d+)'?[.,]\s*'?(\d+)'?)[^0-9]+(?:'?(\d+)'?[.,]\s*'?(\d+)'?)"
)


def trouble_of(text: str) -> EnvironmentMissingError | None:
    """The error for Spark's message; None: the job failed for another reason."""
    host = found[1] if (found := _LOST_TASK.search(text)) else None
    where = f"the Spark workers on {host}" if host else "a Spark worker"
    if found := _NO_PYTHON.search(text):
        return _error(f"{where} cannot start the Python {found[1]}")
    if "PYTHON_VERSION_MISMATCH" in text or "Python in worker has different version" in text:
        versions = _OTHER_PYTHON.search(text)
        which = f" ({versions[1]}.{versions[2]}, not {versions[3]}.{versions[4]})" if versions else ""
        return _error(f"the Python of {where} is not of the driver's version{which}")
    if found := _NO_MODULE.search(text):
        return _error(f"the Python of {where} has no module {found[1]}")
    return None


def _error(message: str) -> EnvironmentMissingError:
    return EnvironmentMissingError(message, operation="run on Spark", hint=HINT)

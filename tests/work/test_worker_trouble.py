from __future__ import annotations

import pytest

from maxbrod.work.jobs import trouble_of

LOST = "Job aborted: Task 0 failed 4 times, most recent: Lost task 0.3 in stage 0.0 (TID 6) (10.1.2.3 executor 1): "


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            'java.io.IOException: Cannot run program "/opt/py/bin/python": error=2, No such file or directory',
            "the Spark workers on 10.1.2.3 cannot start the Python /opt/py/bin/python",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: (3, 9) than that in driver: 3.11",
            "the Python of the Spark workers on 10.1.2.3 is not of the driver's version (3.9, not 3.11)",
        ),
        (
            "org.apache.spark.api.python.PythonException: ModuleNotFoundError: No module named 'maxbrod'",
            "the Python of the Spark workers on 10.1.2.3 has no module maxbrod",
        ),
        (
            "Error from python worker:\n  /usr/bin/python3: No module named pyspark",
            "the Python of the Spark workers on 10.1.2.3 has no module pyspark",
        ),
    ],
)
def test_a_python_that_cannot_run_tasks_is_named_with_its_host(said: str, message: str) -> None:
    trouble = trouble_of(LOST + said)
    assert trouble is not None
    assert str(trouble) == message
    assert trouble.hint is not None
    assert "maxbrod cluster pack" in trouble.hint
    assert not trouble.retryable


def test_another_failure_is_not_taken_for_one_of_the_environment() -> None:
    assert trouble_of(LOST + "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)") is None
    assert trouble_of("") is None

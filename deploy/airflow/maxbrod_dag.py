"""An example of maxbrod under Airflow: a backup, then a quick check, and a drill each week.

The tasks run the command, as it is installed on the workers, and read its exit code and its `--json` document. So
nothing of maxbrod is imported here, and Airflow (3 or later) and maxbrod can be upgraded apart. Copy it, and adapt the
first lines.

Exit codes: 0 is done and complete. After 1 (failed) and 3 (incomplete) Airflow tries again. 2 (configuration), 4
(damage) and 5 (refused for safety) need a person: trying again would not help, and the task fails at once.
"""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timedelta
from typing import Any

from airflow.exceptions import AirflowException, AirflowFailException
from airflow.sdk import dag, task

CONFIG = "/etc/maxbrod/maxbrod.yaml"
PROGRAM = "maxbrod"
NEEDS_A_PERSON = frozenset({2, 4, 5})
SHOWN = 20
"""The notices of a report that a task's log shows."""


def run_maxbrod(*words: str) -> dict[str, Any]:
    """Run a command and return its document. It raises what Airflow is to do about its exit code."""
    command = [PROGRAM, *words, "--config", CONFIG, "--json"]
    # Progress and warnings are on standard error, which becomes the log of the task.
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    document: dict[str, Any] = json.loads(ran.stdout) if ran.stdout.strip() else {}
    why = document.get("message") or document.get("verdict") or "no document"
    for notice in document.get("notices", [])[:SHOWN]:
        print(f"{notice.get('kind')}: {notice.get('message')}")
    if ran.returncode in NEEDS_A_PERSON:
        raise AirflowFailException(f"{' '.join(words)}: exit code {ran.returncode}: {why}")
    if ran.returncode:
        raise AirflowException(f"{' '.join(words)}: exit code {ran.returncode}: {why}")
    return document


DEFAULTS = {"retries": 3, "retry_delay": timedelta(minutes=5), "retry_exponential_backoff": True}


# One run at a time: a second backup of the same archive would be refused.
@dag(schedule="7 * * * *", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1, default_args=DEFAULTS)
def maxbrod_hourly() -> None:
    @task
    def backup() -> dict[str, Any]:
        report = run_maxbrod("backup")
        # What other tasks need of it; the whole report may be large.
        return {"run_id": report.get("run_id"), "recovery_point_ms": report.get("recovery_point_ms")}

    @task
    def check(archived: dict[str, Any]) -> None:
        print(f"recovery point: {archived['recovery_point_ms']}")
        run_maxbrod("check")

    check(backup())


@dag(schedule="0 4 * * 0", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1, default_args=DEFAULTS)
def maxbrod_weekly() -> None:
    @task(execution_timeout=timedelta(hours=6))
    def drill() -> None:
        run_maxbrod("drill", "--sample", "5%", "--report-dir", "/var/lib/maxbrod/drills")

    drill()


maxbrod_hourly()
maxbrod_weekly()

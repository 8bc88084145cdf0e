from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families

from maxbrod.check.options import CheckOptions
from maxbrod.cli.main import run
from maxbrod.cli.metrics import FIGURES, RunMetrics, measuring, report_figures
from maxbrod.cli.progress import progress_bar
from maxbrod.drill.options import DrillOptions
from maxbrod.errors import UnavailableError, UsageError
from maxbrod.work.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path


def values(file: Path, archive: str = "/a") -> dict[str, float]:
    families = text_string_to_metric_families(file.read_text())
    return {
        each.name: each.value for family in families for each in family.samples if each.labels == {"archive": archive}
    }


def test_a_run_that_ends_well_is_a_success_with_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "drill.prom"
    with measuring("drill", DrillOptions(metrics_file=file), archive="/a"):
        report_figures(last_recovery_seconds=12.5, last_records=7)
    found = values(file)
    assert (found["maxbrod_drill_last_recovery_seconds"], found["maxbrod_drill_last_records"]) == (12.5, 7)
    assert (
        found["maxbrod_drill_last_success_timestamp_seconds"] == found["maxbrod_drill_last_run_timestamp_seconds"] > 0
    )
    assert (found["maxbrod_drill_last_exit_code"], found["maxbrod_drill_running"]) == (0, 0)
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("error", "code"), [(typer.Exit(4), 4), (UnavailableError("away"), 1), (RuntimeError("bug"), 1)]
)
def test_a_run_that_fails_keeps_the_time_of_the_last_success(tmp_path: Path, error: Exception, code: int) -> None:
    file = tmp_path / "check.prom"
    options = CheckOptions(metrics_file=file)
    with measuring("check", options, archive="/a"):
        pass
    success = values(file)["maxbrod_check_last_success_timestamp_seconds"]
    with pytest.raises(type(error)), measuring("check", options, archive="/a"):
        raise error
    found = values(file)
    assert found["maxbrod_check_last_success_timestamp_seconds"] == success
    assert found["maxbrod_check_last_run_timestamp_seconds"] >= success
    assert found["maxbrod_check_last_exit_code"] == code
    # Another archive's file says nothing about this one.
    with pytest.raises(typer.Exit), measuring("check", options, archive="/b"):
        raise typer.Exit(3)
    assert values(file, "/b")["maxbrod_check_last_success_timestamp_seconds"] == 0


def test_progress_is_seen_while_a_run_lasts() -> None:
    metrics = RunMetrics("restore", "/a")
    metrics.progress(Progress(phase="restoring", bytes_done=3, bytes_total=9))
    get = metrics.registry.get_sample_value
    assert get("maxbrod_restore_progress_bytes", {"archive": "/a"}) == 3
    assert get("maxbrod_restore_progress_total_bytes", {"archive": "/a"}) == 9
    assert get("maxbrod_restore_running", {"archive": "/a"}) == 1


def test_the_steps_of_a_verb_reach_its_metrics(tmp_path: Path) -> None:
    file = tmp_path / "m.prom"
    with (
        measuring("check", CheckOptions(metrics_file=file), archive="/a"),
        progress_bar(shown=False) as on_progress,
    ):
        on_progress(Progress(phase="reading", bytes_done=5, bytes_total=10))
    assert values(file)["maxbrod_check_progress_bytes"] == 5


def test_a_folder_that_cannot_be_written_is_said_before_the_run(tmp_path: Path) -> None:
    options = CheckOptions(metrics_file=tmp_path / "missing" / "m.prom")
    with pytest.raises(UsageError, match="cannot be written"), measuring("check", options, archive="/a"):
        pytest.fail("the run began")


def test_a_real_command_leaves_its_file(tmp_path: Path) -> None:
    file = tmp_path / "m.prom"
    archive = str(tmp_path / "none")
    assert run(["check", "-a", archive, "--metrics-file", str(file)]) == 2
    found = values(file, archive)
    assert (found["maxbrod_check_last_exit_code"], found["maxbrod_check_last_success_timestamp_seconds"]) == (2, 0)


def test_a_figure_that_is_not_declared_is_a_mistake_of_ours() -> None:
    assert set(FIGURES) == {"backup", "restore", "check", "drill"}
    with pytest.raises(KeyError):
        RunMetrics("check", "/a").set(last_recrods=1)

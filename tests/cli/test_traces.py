"""Runs are traced where OTEL_* variables name a collector, and nowhere else."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import typer
import yaml
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from maxbrod.cli import traces
from maxbrod.cli.main import run
from maxbrod.cli.progress import progress_bar
from maxbrod.cli.traces import is_configured, traced, without_secrets
from maxbrod.cli.verbs import end
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE, EXIT_USAGE, CorruptDataError
from maxbrod.work.progress import Progress
from maxbrod.work.report import Report
from support.collectors import Collector, attributes_of, collecting
from support.native_archives import Making
from support.native_logs import data_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a process opens once is opened for each test."""
    opened: list[traces._Opened | None] = []
    monkeypatch.setattr(traces, "_opened", opened)
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    yield
    for found in opened:
        if found is not None:
            found.provider.shutdown()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        for name, value in found.variables.items():
            monkeypatch.setenv(name, value)
        yield found


def test_a_run_has_a_span_and_each_of_its_phases_one_below_it(collector: Collector) -> None:
    with traced("backup", archive="s3://bucket/a", topics=("orders", "x-*")), progress_bar(shown=False) as tell:
        tell(Progress(phase="looking"))
        tell(Progress(phase="reading", bytes_done=1, bytes_total=9))
        tell(Progress(phase="reading", bytes_done=9, bytes_total=9, records_done=4, tasks_done=2))
    spans = collector.spans()
    assert list(spans) == ["looking", "reading", "maxbrod backup"]
    root = spans["maxbrod backup"]
    assert not root.parent_span_id
    assert attributes_of(root) == {
        "maxbrod.verb": "backup",
        "maxbrod.archive": "s3://bucket/a",
        "maxbrod.topics": ["orders", "x-*"],
        "maxbrod.exit_code": 0,
    }
    for phase in ("looking", "reading"):
        assert (spans[phase].parent_span_id, spans[phase].trace_id) == (root.span_id, root.trace_id)
    assert attributes_of(spans["reading"]) == {"maxbrod.bytes": 9, "maxbrod.records": 4, "maxbrod.tasks": 2}
    assert spans["looking"].end_time_unix_nano <= spans["reading"].start_time_unix_nano
    assert collector.services() == {"maxbrod"}


def test_an_error_is_recorded_with_its_exit_code(collector: Collector) -> None:
    with pytest.raises(CorruptDataError), traced("check", archive=None):
        raise CorruptDataError("the object is torn", object_name="packs/1")
    span = collector.spans()["maxbrod check"]
    assert attributes_of(span)["maxbrod.exit_code"] == EXIT_CORRUPT
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert "the object is torn" in span.status.message
    assert attributes_of(span.events[0])["exception.type"].endswith("CorruptDataError")


@dataclass(frozen=True, kw_only=True)
class Ended(Report):
    """The report of a run that archived a part."""

    records: int = 3
    bytes: int = 70
    exit_code: int = EXIT_INCOMPLETE


def test_a_run_has_the_figures_and_the_exit_code_of_its_report(collector: Collector) -> None:
    call: Any = SimpleNamespace(as_json=False, quiet=True)
    with pytest.raises(typer.Exit), traced("backup", archive=None):
        end(call, Ended(), lambda *_, **__: None)
    span = collector.spans()["maxbrod backup"]
    expected = {"maxbrod.records": 3, "maxbrod.bytes": 70, "maxbrod.exit_code": EXIT_INCOMPLETE}
    assert attributes_of(span) == {"maxbrod.verb": "backup", **expected}
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "exit code 3")
    assert not span.events, "an exit code is no error in the program"


def test_commands_are_traced(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "backups-of-the-shop")
    missing = str(tmp_path / "nothing")
    assert run(["check", "-a", missing]) == EXIT_USAGE
    span = collector.spans()["maxbrod check"]
    assert attributes_of(span) == {
        "maxbrod.verb": "check",
        "maxbrod.archive": missing,
        "maxbrod.exit_code": EXIT_USAGE,
    }
    assert len(span.events) == 1
    assert collector.services() == {"backups-of-the-shop"}


def test_a_job_of_the_scheduler_is_below_the_command_and_has_its_phases(tmp_path: Path, collector: Collector) -> None:
    archive = str(tmp_path / "archive")
    Making(archive).run({0: [data_batch(0, 3)]})
    jobs = {"nightly": {"verb": "check", "every": "30m"}}
    file = tmp_path / "maxbrod.yaml"
    file.write_text(yaml.safe_dump({"archive": archive, "jobs": jobs}))
    assert run(["run", "-c", str(file), "--once", "nightly", "--json"]) == 0
    spans = collector.spans()
    job, command = spans["maxbrod check"], spans["maxbrod run"]
    assert job.parent_span_id == command.span_id
    assert attributes_of(job)["maxbrod.job"] == "nightly"
    assert attributes_of(job)["maxbrod.exit_code"] == 0
    assert [span.name for span in spans.values() if span.parent_span_id == job.span_id]


def test_a_collector_that_is_away_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        archive = str(tmp_path / "archive")
        Making(archive).run({0: [data_batch(0, 3)]})
        assert run(["check", "-a", archive]) == 0


def test_without_a_collector_nothing_is_loaded() -> None:
    program = """
import os, sys
from maxbrod.cli.traces import traced
for name in [name for name in os.environ if name.startswith("OTEL_")]:
    del os.environ[name]
with traced("backup", archive="/a") as trace:
    assert trace is None
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_without_the_extra_runs_are_not_traced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    caplog.set_level("INFO")
    for _ in range(2):
        with traced("backup", archive="/a") as trace:
            assert trace is None
    assert [record.message for record in caplog.records if "maxbrod[otel]" in record.message] == [
        "no traces are sent to the collector that OTEL_* names: they need 'maxbrod[otel]'"
    ]


@pytest.mark.parametrize(
    ("variables", "configured"),
    [
        ({}, False),
        ({ENDPOINT: "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({ENDPOINT: ""}, False),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "otlp,console"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_the_standard_variables_turn_traces_on_and_off(variables: dict[str, str], configured: bool) -> None:
    assert is_configured(variables) is configured


@pytest.mark.parametrize(
    ("archive", "shown"),
    [
        ("/backups/kafka", "/backups/kafka"),
        ("s3://bucket/kafka", "s3://bucket/kafka"),
        (
            "https://user:secret@account.blob.core.windows.net/c/a?sig=secret#secret",
            "https://account.blob.core.windows.net/c/a",
        ),
    ],
)
def test_spans_have_the_archive_without_secrets(archive: str, shown: str) -> None:
    assert without_secrets(archive) == shown

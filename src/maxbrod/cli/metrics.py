"""Metrics of verbs that end: last run, last success, exit code, duration and figures, as endpoint and as textfile.

The endpoint serves a long run while it lasts. The file is for runs from cron, and for Prometheus' textfile collector:
it is replaced as a whole when a run ends, however it ends, and keeps the time of the last success of earlier runs.
`backup --follow` has metrics of its own, in `backup/metrics`, with names that agree.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from maxbrod.cli.health import STALL_S, Health, serving, watched_by_systemd
from maxbrod.cli.progress import observing
from maxbrod.errors import EXIT_DONE, EXIT_FAILED, MaxbrodError, UsageError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from maxbrod.work.progress import Progress

_LOG: Final = logging.getLogger(__name__)
_SUCCESS: Final = "last_success_timestamp_seconds"
EVERY: Final = {
    "last_run_timestamp_seconds": "When the last run ended, however it ended.",
    _SUCCESS: "When the last complete run ended; 0 if none is known.",
    "last_exit_code": "The exit code of the last run.",
    "last_duration_seconds": "How long the last run took.",
    "running": "1 while a run is in progress.",
    "progress_bytes": "Bytes that the run in progress has done.",
    "progress_total_bytes": "Bytes that the run in progress has to do, as far as known.",
}
"""Metrics of every measured verb, after `maxbrod_VERB_`."""
FIGURES: Final = {
    "backup": {
        "recovery_point_timestamp_seconds": "Everything written before this can be restored; 0 while there is none.",
        "last_records": "Records that the last run archived.",
        "last_read_bytes": "Bytes of log that the last run read.",
        "last_stored_bytes": "Bytes that the last run stored.",
    },
    "restore": {"last_records": "Records that the last run restored."},
    "check": {"last_problems": "Problems that the last run found.", "last_deep": "1 if the last run read everything."},
    "drill": {
        "last_recovery_seconds": "How long the last drill took to restore its sample.",
        "last_records": "Records that the last drill compared.",
        "last_partitions": "Partitions that the last drill restored.",
    },
}

_current: list[RunMetrics] = []


def report_figures(**figures: float | None) -> None:
    """Set figures of the verb that runs, if it is measured."""
    for metrics in _current:
        metrics.set(**figures)


@contextmanager
def measuring(verb: str, options: Any, *, archive: str | None) -> Iterator[None]:  # noqa: ANN401 - of any verb
    """Measure the block, which is one run of a verb, if its options ask for metrics."""
    port, file = getattr(options, "metrics_port", None), getattr(options, "metrics_file", None)
    if verb not in FIGURES or (port is None and file is None) or getattr(options, "follow", False):
        yield
        return
    metrics, health = RunMetrics(verb, archive or ""), Health()
    if file is not None:
        check_writable(file)
        metrics.remember(file)
    with ExitStack() as undo:
        undo.enter_context(observing(metrics.progress))
        undo.enter_context(observing(lambda _: health.beat()))
        if port is not None:
            undo.enter_context(serving(metrics.registry, health, port, options.metrics_host, options.metrics_names))
        _current.append(metrics)
        undo.callback(_current.remove, metrics)
        code = EXIT_FAILED
        try:
            yield
            code = EXIT_DONE
        except typer.Exit as ending:
            code = int(ending.exit_code)
            raise
        except MaxbrodError as error:
            code = error.exit_code
            raise
        finally:
            metrics.ended(code)
            if file is not None:
                write_textfile(file, metrics.registry)


@contextmanager
def exporting(registry: CollectorRegistry, options: Any, *, every_s: float) -> Iterator[Callable[[str | None], None]]:  # noqa: ANN401 - of any verb
    """Export the metrics of a verb that follows, and its health, as its options say.

    Call what it yields after each interval, with the interval's problem or None.
    """
    file = options.metrics_file
    if file is not None:
        check_writable(file)
    # Between two intervals nothing moves.
    health = Health(stall_s=STALL_S + every_s)

    def ended(problem: str | None) -> None:
        health.ended(problem)
        if file is not None:
            write_textfile(file, registry)

    with ExitStack() as undo:
        undo.enter_context(observing(lambda _: health.beat()))
        undo.enter_context(watched_by_systemd(health))
        if options.metrics_port is not None:
            undo.enter_context(
                serving(registry, health, options.metrics_port, options.metrics_host, options.metrics_names)
            )
        yield ended


class RunMetrics:
    """The metrics of one verb. Each has the label `archive`, since files of several archives may be collected."""

    def __init__(self, verb: str, archive: str) -> None:
        from prometheus_client import CollectorRegistry, Gauge  # noqa: PLC0415 - not for `--help`

        self.registry: CollectorRegistry = CollectorRegistry()
        self._verb, self._archive, self._started = verb, archive, time.monotonic()
        self._gauges = {
            name: Gauge(f"maxbrod_{verb}_{name}", text, ["archive"], registry=self.registry)
            for name, text in {**EVERY, **FIGURES[verb]}.items()
        }
        self.set(running=1, **{_SUCCESS: 0})

    def set(self, **values: float | None) -> None:
        for name, value in values.items():
            if value is not None:
                self._gauges[name].labels(self._archive).set(value)

    def progress(self, step: Progress) -> None:
        if step.bytes_total:
            self.set(progress_bytes=step.bytes_done, progress_total_bytes=step.bytes_total)

    def remember(self, file: Path) -> None:
        """Take the last success over from the file of an earlier run: a failed run must not hide when it was."""
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - not for `--help`

        try:
            families = list(text_string_to_metric_families(file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return
        for sample in (sample for family in families for sample in family.samples):
            if sample.name == f"maxbrod_{self._verb}_{_SUCCESS}" and sample.labels.get("archive") == self._archive:
                self.set(**{_SUCCESS: sample.value})

    def ended(self, exit_code: int) -> None:
        now, took = time.time(), time.monotonic() - self._started
        self.set(running=0, last_run_timestamp_seconds=now, last_exit_code=exit_code, last_duration_seconds=took)
        if exit_code == EXIT_DONE:
            self.set(**{_SUCCESS: now})


def check_writable(file: Path) -> None:
    """UsageError: the file's folder cannot be written, which is better known before a long run than after it."""
    folder = file.absolute().parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UsageError("the metrics cannot be written there", object_name=str(file), hint="see --metrics-file")


def write_textfile(file: Path, registry: CollectorRegistry) -> None:
    """Replace the file as a whole: the collector must never read half of it. A failure is a warning.

    Records that are archived are archived, whether or not a disk is full that has the metrics.
    """
    from prometheus_client import generate_latest  # noqa: PLC0415 - not for `--help`

    try:
        handle, temporary = tempfile.mkstemp(dir=file.absolute().parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as written:
                written.write(generate_latest(registry))
            # The collector runs as another user.
            Path(temporary).chmod(0o644)
            Path(temporary).replace(file)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        _LOG.warning("the metrics cannot be written to %s: %s", file, error.strerror)

"""OpenTelemetry traces: a span for each run of a verb, and below it one for each phase and each job of the scheduler.

An extra (`maxbrod[otel]`), configured by the OTEL_* variables as any program with OpenTelemetry is. Without an endpoint
in these variables nothing of it is loaded. A collector that does not answer delays the end of a command by its timeout,
and changes nothing else.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import typer

from maxbrod.cli.progress import observing
from maxbrod.errors import EXIT_DONE, EXIT_FAILED, MaxbrodError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

    from maxbrod.work.progress import Progress
    from maxbrod.work.report import Report

_LOG: Final = logging.getLogger(__name__)
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SERVICE: Final = "maxbrod"
_FLUSH_MS: Final = 10_000
_FIGURES: Final = ("records", "bytes")
"""Numbers of a report that become attributes of its run."""

_lock: Final = threading.Lock()
_opened: list[_Opened | None] = []
_running: Final[list[RunTrace]] = []
"""The runs of this process: that of the command, and those of the scheduler's jobs."""
_CURRENT: Final[ContextVar[RunTrace | None]] = ContextVar("trace", default=None)
"""The run of this thread."""


@contextmanager
def traced(verb: str, *, archive: str | None, topics: object = (), job: str | None = None) -> Iterator[RunTrace | None]:
    """Trace the block, which is one run of a verb, or of a job with this name. None: nothing is traced."""
    opened = _open() if is_configured(os.environ) else None
    if opened is None:
        yield None
        return
    attributes: dict[str, Any] = {"maxbrod.verb": verb}
    if archive is not None:
        attributes["maxbrod.archive"] = without_secrets(archive)
    if isinstance(topics, list | tuple) and topics:
        attributes["maxbrod.topics"] = [str(topic) for topic in topics]
    if job is not None:
        attributes["maxbrod.job"] = job
    # A job is below the command that schedules it, which began before it and in another thread.
    parent = _running[0] if job is not None and _running else None
    trace = RunTrace(opened.tracer, f"{_SERVICE} {verb}", attributes, parent)
    _running.append(trace)
    token = _CURRENT.set(trace)
    try:
        # The progress of a job goes to the scheduler, not to the bar of a terminal.
        with observing(trace.see) if job is None else nullcontext():
            yield trace
    except BaseException as ending:
        trace.end(ending)
        raise
    else:
        trace.end(None)
    finally:
        _CURRENT.reset(token)
        _running.remove(trace)
        opened.provider.force_flush(_FLUSH_MS)


def trace_report(report: Report) -> None:
    """Add the figures of a report to the run of which it is, if that is traced."""
    if (trace := _CURRENT.get()) is not None:
        trace.add({name: getattr(report, name, None) for name in _FIGURES})


def is_configured(variables: Mapping[str, str]) -> bool:
    """True if the variables name a collector, and do not turn traces off."""
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    # Whoever lists several exporters wants this one among them; other ones are not supported.
    exporters = variables.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    return "otlp" in exporters.split(",") and any(variables.get(name, "").strip() for name in _ENDPOINTS)


def without_secrets(archive: str) -> str:
    """The URL of an archive without user, password, query and fragment; a path as it is."""
    if "://" not in archive:
        return archive
    parts = urlsplit(archive)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class RunTrace:
    """The span of one run. Progress comes from several threads."""

    def __init__(self, tracer: Tracer, name: str, attributes: Mapping[str, Any], parent: RunTrace | None) -> None:
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415 - an extra

        self._tracer, self._lock = tracer, threading.Lock()
        context = None if parent is None else parent.context
        self.span = tracer.start_span(name, context, attributes=dict(attributes))
        self.context: Context = set_span_in_context(self.span)
        self.exit_code: int | None = None
        """The exit code of a run that ends without raising it."""
        self._phase: Span | None = None
        self._last: Progress | None = None

    def see(self, step: Progress) -> None:
        """Take progress in: a new phase ends the span of the one before."""
        with self._lock:
            if self._last is None or step.phase != self._last.phase:
                self._end_phase()
                self._phase = self._tracer.start_span(step.phase, self.context)
            self._last = step

    def add(self, figures: Mapping[str, object]) -> None:
        """Add numbers to the span of the run."""
        for name, figure in figures.items():
            if isinstance(figure, int):
                self.span.set_attribute(f"maxbrod.{name}", figure)

    def end(self, ending: BaseException | None) -> None:
        """End the span with the exit code that the run has, and its error."""
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - an extra

        with self._lock:
            self._end_phase()
        code = _code_of(ending) if self.exit_code is None else self.exit_code
        self.span.set_attribute("maxbrod.exit_code", code)
        if ending is not None and not isinstance(ending, typer.Exit):
            self.span.record_exception(ending)
        if code != EXIT_DONE:
            words = f"exit code {code}" if ending is None or isinstance(ending, typer.Exit) else str(ending)
            self.span.set_status(Status(StatusCode.ERROR, words))
        self.span.end()

    def _end_phase(self) -> None:
        if self._phase is None or self._last is None:
            return
        figures = {"bytes": self._last.bytes_done, "records": self._last.records_done, "tasks": self._last.tasks_done}
        for name, figure in figures.items():
            if figure:
                self._phase.set_attribute(f"maxbrod.{name}", figure)
        self._phase.end()
        self._phase = self._last = None


def _code_of(ending: BaseException | None) -> int:
    if ending is None:
        return EXIT_DONE
    if isinstance(ending, typer.Exit):
        return int(ending.exit_code)
    return ending.exit_code if isinstance(ending, MaxbrodError) else EXIT_FAILED


class _Opened:
    """What makes spans and sends them. One for the process: its thread sends while verbs run."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer(_SERVICE)


def _open() -> _Opened | None:
    with _lock:
        if not _opened:
            _opened.append(_make())
        return _opened[0]


def _make() -> _Opened | None:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        # The variables may be there for other programs.
        _LOG.info("no traces are sent to the collector that OTEL_* names: they need 'maxbrod[otel]'")
        return None
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if named else {SERVICE_NAME: _SERVICE}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return _Opened(provider)

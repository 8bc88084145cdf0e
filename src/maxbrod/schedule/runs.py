"""Runs one job in a thread of this process, and tells how it ended; a job that follows also tells of each interval."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from maxbrod.cli.process import means_dead_jvm
from maxbrod.cli.supervised import Supervisor, run_supervised
from maxbrod.cli.traces import RunTrace, traced
from maxbrod.errors import (
    EXIT_CORRUPT,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INCOMPLETE,
    EXIT_REFUSED,
    EXIT_USAGE,
    MaxbrodError,
)
from maxbrod.model import now_ms
from maxbrod.notices import PromiseState
from maxbrod.schedule.state import JobOutcome

if TYPE_CHECKING:
    from maxbrod.cli.commands import Call
    from maxbrod.schedule.jobs import ScheduledJob
    from maxbrod.work.progress import Progress

_LOG: Final = logging.getLogger(__name__)
STOPPED: Final = "stopped"
_LISTS: Final = ("notices", "faults", "problems", "archives")
_WORDS: Final = {
    EXIT_DONE: "complete",
    EXIT_FAILED: "failed",
    EXIT_USAGE: "wrong usage",
    EXIT_INCOMPLETE: "incomplete",
    EXIT_CORRUPT: "corrupt data found",
    EXIT_REFUSED: "refused",
}


class JobRun:
    """One run of a job. `on_end` is called in its thread when it has ended, `on_interval` after each interval."""

    def __init__(
        self,
        job: ScheduledJob,
        *,
        slot_ms: int | None,
        on_end: Callable[[JobRun, JobOutcome], None],
        on_interval: Callable[[JobRun, JobOutcome], None] = lambda _run, _outcome: None,
    ) -> None:
        self.job, self.slot_ms, self.started_ms = job, slot_ms, now_ms()
        self.moved_at = self.began_at = time.monotonic()
        """When it last reported progress: what does not move for long is stuck."""
        self.document: Mapping[str, Any] | None = None
        """The last document that the verb has printed."""
        self._on_end, self._on_interval = on_end, on_interval
        self._stopping = False
        self._trace: RunTrace | None = None
        self._supervisor = Supervisor(on_document=self._documented, on_progress=self._moved)
        self._thread = threading.Thread(target=self._run, name=f"job {job.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop it in order: it ends at its next commit."""
        self._stopping = True
        self._supervisor.stop()

    def join(self, seconds: float | None = None) -> bool:
        """Wait for its end; False if it has not come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def _moved(self, step: Progress) -> None:
        self.moved_at = time.monotonic()
        if self._trace is not None:
            self._trace.see(step)

    def _documented(self, document: Mapping[str, Any]) -> None:
        self.moved_at = time.monotonic()
        self.document = document
        if self.job.follows:
            code = document.get("exit_code")
            self._on_interval(self, self._outcome(code if isinstance(code, int) else EXIT_DONE, *_said(document)))

    def _run(self) -> None:
        try:
            outcome = self._outcome(*self._attempt())
        except BaseException as error:  # noqa: BLE001 - see below
            # Nothing may end the scheduler without a word: not even what is no Exception.
            _LOG.exception("the job %s has ended by an error that is a bug in maxbrod", self.job.name)
            outcome = self._outcome(EXIT_FAILED, f"{type(error).__name__}: {error}", "please report it, with the log")
        self._on_end(self, outcome)

    def _attempt(self) -> tuple[int, str | None, str | None]:
        try:
            code = self._traced(self.job.call())
        except MaxbrodError as error:
            return error.exit_code, str(error), error.hint
        except Exception as error:
            if not means_dead_jvm(error):
                raise
            return EXIT_FAILED, "Spark's JVM has died: it was killed", "the next run starts another one"
        said = (None, None) if code == EXIT_DONE or self.document is None else _said(self.document)
        return code, *said

    def _traced(self, call: Call[Any]) -> int:
        verb, topics = self.job.verb, getattr(call.options, "topics", ())
        with traced(verb, archive=call.config.archive, topics=topics, job=self.job.name) as trace:
            self._trace = trace
            code = run_supervised(self.job.declared.run, call, self._supervisor)
            if trace is not None:
                trace.exit_code = code
        return code

    def _outcome(self, exit_code: int, error: str | None, hint: str | None) -> JobOutcome:
        # What ends with another code than 0 because it was stopped is not a failure; what ends well is a success.
        stopped = self._stopping and exit_code != EXIT_DONE
        return JobOutcome(
            slot_ms=self.slot_ms,
            started_ms=self.started_ms,
            finished_ms=now_ms(),
            exit_code=exit_code,
            verdict=STOPPED if stopped else _WORDS.get(exit_code, "failed"),
            error=error,
            hint=hint,
            stopped=stopped,
        )


def _said(document: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The error and the hint of a document: its own, those of its report, or the first of what it lists."""
    report = document.get("report")
    for part in (document, report if isinstance(report, Mapping) else {}):
        error = part.get("error")
        if isinstance(error, Mapping):
            return str(error.get("message")), error.get("hint")
        if found := [item for name in _LISTS for item in _bad(part.get(name))]:
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            return f"{found[0][0]}{more}", found[0][1]
        if isinstance(verdict := part.get("verdict"), str):
            return f"the verdict is: {verdict}", None
    return None, None


def _bad(items: object) -> Iterator[tuple[str, str | None]]:
    """What is wrong among notices, faults, problems, or the promises of archives."""
    for item in items if isinstance(items, list | tuple) else ():
        if not isinstance(item, Mapping):
            continue
        if "promises" in item:
            for promise in item["promises"]:
                if promise.get("state") == PromiseState.FAILED:
                    yield f"{promise.get('name')}: {promise.get('text')}", promise.get("hint")
        elif "message" in item and item.get("exit_code", EXIT_FAILED):
            yield f"{item['kind']}: {item['message']}" if "kind" in item else str(item["message"]), item.get("hint")

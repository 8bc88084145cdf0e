"""Runs ingress interval by interval until it is stopped. What a retry may fix is reported, and tried again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import EXIT_DONE, CorruptDataError, MaxbrodError, NoArchiveError, ObjectNotFoundError
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.lease import RENEWALS
from maxbrod.work.progress import OnProgress, silent

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from maxbrod.config import Config
    from maxbrod.replicate.report import IngressReport
    from maxbrod.work.session import Session

_POLL_S: Final = 0.2
_BACKOFF_MAX_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One interval: its report, or the error that it failed with."""

    number: int
    report: IngressReport | None
    error: MaxbrodError | None
    failures: int
    """Failures in a row, including this one."""

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return self.error.exit_code
        return EXIT_DONE if self.report is None else self.report.exit_code

    def as_dict(self) -> dict[str, Any]:
        return {
            "interval": self.number,
            "exit_code": self.exit_code,
            "failures": self.failures,
            "report": None if self.report is None else self.report.as_dict(),
            "error": None if self.error is None else self.error.as_dict(),
        }


def follow_archive(
    config: Config,
    *,
    stop: threading.Event,
    on_interval: Callable[[Interval], None],
    on_progress: OnProgress = silent,
    session: Session | None = None,
) -> Interval:
    """Run until `stop` is set, and return the last interval. Errors that a retry cannot fix are raised."""
    last: Interval | None = None
    options, seen = config.replicate, None
    with Ingress(config, session=session, on_progress=on_progress, stop=stop) as ingress:
        while True:
            began = time.monotonic()
            report, error = None, None
            try:
                report = ingress.run()
            except MaxbrodError as failure:
                if not may_come(failure, once=options.once):
                    raise
                error = failure
            stands_by = report is not None and report.standby_for is not None
            if options.once and stands_by and seen in {None, ingress.leader_seen}:
                # Whoever leads may have been killed: it is lost after a while, and nobody else may be there to notice.
                seen = ingress.leader_seen
                if wait_unless(min(options.every, options.takeover / RENEWALS), stop):
                    continue
            failures = 0 if error is None else 1 + (0 if last is None else last.failures)
            number = 1 if last is None else last.number + 1
            last = Interval(number=number, report=report, error=error, failures=failures)
            on_interval(last)
            if options.once:
                return last
            pause_s = options.every - (time.monotonic() - began)
            if failures > 1:
                pause_s = max(pause_s, min(options.every * 2 ** min(failures - 1, 10), _BACKOFF_MAX_S))
            if not wait_unless(pause_s, stop):
                return last


def may_come(failure: MaxbrodError, *, once: bool) -> bool:
    """While a bucket is copied here, parts of the catalog, or all of it, may be missing or cut off for a while."""
    if isinstance(failure, NoArchiveError):
        return not once
    return failure.retryable or isinstance(failure, (CorruptDataError, ObjectNotFoundError))


def wait_unless(seconds: float, stop: threading.Event) -> bool:
    """False if `stop` was set. It polls: waiting on the event would hold its lock when a signal handler sets it."""
    until = time.monotonic() + seconds
    while not stop.is_set():
        rest_s = until - time.monotonic()
        if rest_s <= 0:
            return True
        time.sleep(min(rest_s, _POLL_S))
    return False

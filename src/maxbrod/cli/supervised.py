"""Runs a verb inside a process that runs several: who gets its document, who stops it, who sees its progress.

On the command line a verb prints its document, hears signals and shows a bar. Under a supervisor, which `maxbrod run`
is, the thread of the verb has these instead. Nothing in a verb knows the difference: the functions of `cli` that print,
stop and show progress ask `supervisor()`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import typer

from maxbrod.errors import EXIT_DONE

if TYPE_CHECKING:
    from maxbrod.cli.commands import Call
    from maxbrod.work.progress import OnProgress


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """What a verb has instead of a terminal."""

    on_document: Callable[[Mapping[str, Any]], None]
    on_progress: OnProgress
    _stops: list[threading.Event] = field(default_factory=list)
    _stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def stop(self) -> None:
        """Stop the verb, as the first signal does on the command line."""
        with self._lock:
            self._stopped = True
            for stop in self._stops:
                stop.set()

    @contextmanager
    def stopping(self, stop: threading.Event) -> Iterator[None]:
        """Within the block, `stop` is set when the verb is to stop."""
        with self._lock:
            self._stops.append(stop)
            if self._stopped:
                stop.set()
        try:
            yield
        finally:
            with self._lock:
                self._stops.remove(stop)


_SUPERVISOR: Final[ContextVar[Supervisor | None]] = ContextVar("supervisor", default=None)


def supervisor() -> Supervisor | None:
    """Return the supervisor of the verb that this thread runs; None: there is none, as on the command line."""
    return _SUPERVISOR.get()


def run_supervised(run: Callable[..., None], call: Call[Any], by: Supervisor) -> int:
    """Run a verb in this thread and return its exit code. It raises what the verb raises."""
    # A command that is a group as well asks which of its commands was called: none.
    nothing = SimpleNamespace(invoked_subcommand=None)
    others = {name: nothing for name in signature(run).parameters if name == "context"}
    token = _SUPERVISOR.set(by)
    try:
        run(call, **others)
    except typer.Exit as ending:
        return int(ending.exit_code)
    finally:
        _SUPERVISOR.reset(token)
    return EXIT_DONE

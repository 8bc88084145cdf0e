"""One Spark session for several verbs of one process: opened when the first needs it, replaced when it has died.

A process can have one session, and a JVM takes seconds to start and memory to keep. Within `lending` every verb that
asks for a session of its own borrows this one. It is closed when nobody has used it for a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import StoppedError
from maxbrod.work.session import lenders, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from maxbrod.config import SparkConfig

_LOG: Final = logging.getLogger(__name__)
_POLL_S: Final = 0.2


class SharedSession:
    """Thread-safe. Call `close_if_idle` now and then, and `close` at the end."""

    def __init__(self, *, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_s, self._clock = idle_s, clock
        self._changed = threading.Condition()
        self._users = 0
        self._busy = False
        """True while a thread opens or closes a session, which takes seconds."""
        self._session: SparkSession | None = None
        self._config: SparkConfig | None = None
        self._used_at = clock()
        self._undo = ExitStack()
        self.opened = 0
        """How many sessions were opened so far."""

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @contextmanager
    def borrowed(self, config: SparkConfig, stop: threading.Event | None = None) -> Iterator[SparkSession]:
        """Yield the session. If it has died, those who still hold it are waited for, and another one is opened.

        StoppedError: `stop` was set meanwhile.
        """
        session = self._take(config, stop)
        try:
            yield session
        finally:
            with self._changed:
                self._users -= 1
                self._used_at = self._clock()
                self._changed.notify_all()

    def close_if_idle(self) -> bool:
        """Close the session if nobody uses it and nobody has for a while; True if it did."""
        with self._changed:
            idle = self._clock() - self._used_at >= self._idle_s
            if self._session is None or self._users or self._busy or not idle:
                return False
            self._busy = True
        self._replace(None)
        return True

    def close(self) -> None:
        """Close the session, whoever uses it."""
        with self._changed:
            while self._busy:
                self._changed.wait(_POLL_S)
            self._busy = True
        self._replace(None)

    def _take(self, config: SparkConfig, stop: threading.Event | None) -> SparkSession:
        while True:
            with self._changed:
                if not self._busy and self._session is not None and self._config == config and is_alive(self._session):
                    self._users += 1
                    return self._session
                # Another one can be opened only when nobody uses this one: a process has one.
                if not self._busy and not self._users:
                    self._busy = True
                    break
                if stop is not None and stop.is_set():
                    raise StoppedError("stopped on request", hint="run it again")
                self._changed.wait(_POLL_S)
        return self._replace(config, taken=True)

    def _replace(self, config: SparkConfig | None, *, taken: bool = False) -> Any:  # noqa: ANN401 - a session, or None
        """Close the session and open another, if `config` says how. Only the thread that has set `_busy` calls it."""
        opened: SparkSession | None = None
        try:
            if self._session is not None and config is not None:
                _LOG.warning("Spark has died, or its settings have changed: it is started again")
            self._session = None
            self._undo.close()
            if config is not None:
                # It lives long, so the JVM may compile fully, as for work that it does itself.
                opening = open_session(
                    master=config.master if "master" in config.model_fields_set else None,
                    conf=config.conf,
                    jvm_works=True,
                )
                opened = self._undo.enter_context(opening)
                self.opened += 1
        finally:
            with self._changed:
                self._session, self._config, self._used_at = opened, config, self._clock()
                self._users += taken and opened is not None
                self._busy = False
                self._changed.notify_all()
        return opened


@contextmanager
def lending(shared: SharedSession) -> Iterator[None]:
    """Within the block, verbs of this process that need a session borrow this one."""
    lenders.append(shared)
    try:
        yield
    finally:
        lenders.remove(shared)
        shared.close()


def is_alive(session: SparkSession) -> bool:
    """Return False if the session's JVM has died, or it was stopped."""
    try:
        context = session.sparkContext
        return context._jsc is not None and not context._jsc.sc().isStopped()  # noqa: SLF001 - PySpark has no other way
    except Exception as error:
        if isinstance(error, OSError) or type(error).__module__.startswith(("py4j", "pyspark")):
            # Spark Connect has no context: it finds out by its next request.
            return "CONNECT" in str(error).upper() and type(error).__name__ == "PySparkAttributeError"
        raise

"""Progress of backup tasks: how much is done, and which broker they wait for."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.wire.connection import Connection
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.work.progress import OnProgress, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from maxbrod.backup.plan.items import Outcome
    from maxbrod.backup.plan.tasks import Wave
    from maxbrod.config import KafkaConfig
    from maxbrod.kafka.state.cluster_state import Broker

_LOG: Final = logging.getLogger(__name__)
_QUIET_S: Final = 10.0
_EVERY_S: Final = 15.0
_CONNECT_S: Final = 3.0
"""For all brokers together: the end of the tasks may have to wait for this."""


class Meter:
    """Converts finished tasks to bytes: an estimate while a wave is read, and the real number afterwards."""

    def __init__(self, on_progress: OnProgress, waves: Sequence[Wave]) -> None:
        self._on_progress = on_progress
        self._waves = [(len(wave), sum(task.bytes_estimate for task in wave)) for wave in waves]
        self.bytes_total = sum(size for _, size in self._waves)
        self._wave = 0
        self._bytes = self._records = self._tasks = 0
        if waves:
            self.tasks_done(0)

    def tasks_done(self, count: int) -> None:
        """`count` tasks of the current wave have ended."""
        left = self._waves[self._wave :]
        tasks, size = left[0] if left else (0, 0)
        count = min(count, tasks)
        self._on_progress(
            Progress(
                phase="reading",
                bytes_done=self._bytes + (size * count // tasks if tasks else 0),
                bytes_total=self._bytes + sum(each for _, each in left),
                records_done=self._records,
                tasks_done=self._tasks + count,
                tasks_total=self._tasks + sum(each for each, _ in left),
            )
        )

    def wave_done(self, outcomes: Iterable[Outcome] = ()) -> None:
        self._tasks += self._waves[self._wave][0]
        for outcome in outcomes:
            self._bytes += sum(each.raw_bytes for each in outcome.slices)
            self._records += sum(each.records for each in outcome.slices)
        self._wave += 1
        self.tasks_done(0)


class BrokerWatch:
    """Logs brokers that cannot be reached. Tasks run elsewhere and report nothing before they end.

    If no task has ended for a while, this tries to connect to every broker from here. `brokers` are those of the plan;
    `then` is called with every count.
    """

    def __init__(self, kafka: KafkaConfig, brokers: Sequence[Broker], *, then: Callable[[int], None]) -> None:
        self._kafka = kafka
        self._then = then
        self._brokers = brokers
        self._done = 0
        self._check_at = time.monotonic() + _QUIET_S

    def tasks_done(self, count: int) -> None:
        """Called often."""
        self._then(count)
        now = time.monotonic()
        if count != self._done:
            self._done, self._check_at = count, now + _QUIET_S
        elif now >= self._check_at:
            self._check()
            self._check_at = time.monotonic() + _EVERY_S

    def _check(self) -> None:
        limit = Deadline.after(_CONNECT_S)
        for broker in self._brokers:
            if limit.passed:
                return
            try:
                Connection.open(broker.host, broker.port, self._kafka, client_id="maxbrod", deadline=limit).close()
            except MaxbrodError as error:
                _LOG.warning("waiting for broker %d at %s:%d: %s", broker.node_id, broker.host, broker.port, error)

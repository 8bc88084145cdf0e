"""Tells what tasks may be waiting for. They run elsewhere, and nobody hears them before they are done.

When for a while no task has ended, it looks from here whether every broker can be talked to, and logs who cannot.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.wire.connection import Connection
from maxbrod.kafka.wire.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maxbrod.config import KafkaConfig
    from maxbrod.kafka.state.cluster_state import Broker

_LOG: Final = logging.getLogger(__name__)
_QUIET_S: Final = 10.0
_EVERY_S: Final = 15.0
_LOOK_S: Final = 3.0
"""For all brokers together: whoever waits for the tasks may wait for this, too."""


class BrokerWatch:
    """Of one wave of tasks. `brokers` are those that there were when it was planned; `then` hears of every call."""

    def __init__(self, kafka: KafkaConfig, brokers: Sequence[Broker], *, then: Callable[[int], None]) -> None:
        self._kafka = kafka
        self._then = then
        self._brokers = brokers
        self._done = 0
        self._look_at = time.monotonic() + _QUIET_S

    def tasks_done(self, count: int) -> None:
        """Called often."""
        self._then(count)
        now = time.monotonic()
        if count != self._done:
            self._done, self._look_at = count, now + _QUIET_S
        elif now >= self._look_at:
            self._look()
            self._look_at = time.monotonic() + _EVERY_S

    def _look(self) -> None:
        limit = Deadline.after(_LOOK_S)
        for broker in self._brokers:
            if limit.passed:
                return
            try:
                Connection.open(broker.host, broker.port, self._kafka, client_id="maxbrod", deadline=limit).close()
            except MaxbrodError as error:
                _LOG.warning("waiting for broker %d at %s:%d: %s", broker.node_id, broker.host, broker.port, error)

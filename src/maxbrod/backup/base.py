"""The base of backups into any layout: the request, a Kafka client and workers that stay open between runs."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from maxbrod.backup.plan.starts import parse_start
from maxbrod.errors import UsageError
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.work.executor import Workers
from maxbrod.work.preflight import needs_of
from maxbrod.work.progress import OnProgress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from maxbrod.config import Config
    from maxbrod.work.session import Session


class BackupBase:
    """One archive and one cluster, for any number of runs. Spark starts when there is something to read, and stays.

    Use it in a `with`. Any thread may set `stop`: the current run then ends at its next commit.
    """

    def __init__(
        self,
        config: Config,
        *,
        session: Session | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
    ) -> None:
        if config.kafka is None:
            raise UsageError("no cluster is named", hint="give --bootstrap, or kafka.bootstrap in the configuration")
        if config.archive is None:
            raise UsageError("no archive is named", hint="give --archive, or archive in the configuration")
        self._config, self._kafka, self._archive_url = config, config.kafka, config.archive
        self._request = config.backup
        self._start = parse_start(self._request.start)
        self._on_progress = on_progress
        self.stop = stop or threading.Event()
        self.recovery_point_ms: int | None = None
        """The recovery point of the chosen topics, even if the last run failed."""
        self.lags: Mapping[str, int | None] | None = None
        """For each topic, how many offsets the cluster had at the last run and the archive lacks; None if unknown."""
        self._undo = ExitStack()
        needs = needs_of(config, writes=True)
        self._workers = self._undo.enter_context(
            Workers(config.spark, needs=needs, session=session, on_progress=on_progress, stop=self.stop)
        )
        self._client = self._undo.enter_context(KafkaClient(self._kafka, stop=self.stop))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def hurry(self) -> None:
        """Allow one more run after a stop, which reads everything to the end."""
        self.stop = self._client.stop = self._workers.stop = threading.Event()


def rate_of_one(rate: float | None, tasks: int, parallelism: int) -> float | None:
    """The bytes that each of these tasks may read in a second, of what the user allows all of them."""
    return None if rate is None else rate / max(min(tasks, parallelism), 1)

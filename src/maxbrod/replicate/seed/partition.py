"""One partition of a source while an ingress runs: its worker, its destination, and what happened so far."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.columns import number_column
from maxbrod.errors import (
    CorruptDataError,
    MaxbrodError,
    ObjectNotFoundError,
    ProducerFencedError,
    TopicGoneError,
    UnsupportedFormatError,
)
from maxbrod.layouts.parquet.events import Checkpoint
from maxbrod.replicate.seed import machine
from maxbrod.replicate.seed.machine import Phase, Process, Settings, Worker
from maxbrod.replicate.seed.report import TreePartition

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from concurrent.futures import Future

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.replicate.seed.control_topics import Checkpoints, TreeSource
    from maxbrod.replicate.seed.destination import Destination
    from maxbrod.replicate.seed.tree import Tree

_LOG: Final = logging.getLogger(__name__)
_RETRY_FIRST_NS: Final = 1_000_000_000
_RETRY_MAX_NS: Final = 60_000_000_000
_STATES: Final = {
    Phase.INIT: "starting",
    Phase.IDLE: "in step",
    Phase.FIRST: "first segment",
    Phase.LATE: "late segment",
    Phase.PROCESS: "catching up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of work on a segment: its last offset, and the error that ended it early, if any."""

    checkpoint: int | None
    error: MaxbrodError | None = None
    whole: bool = False


@dataclass(slots=True)
class Partition:
    source: TreeSource
    destination: Destination
    worker: Worker
    due_ns: int = 0
    running: Future[Outcome] | None = None
    process: Process | None = None
    waits: bool = False
    """True if there was nothing to do when it was last asked."""
    fault: str | None = None
    unreachable: str | None = None
    """Why the tree or the checkpoints could not be read."""
    absent: str | None = None
    """Why the destination topic cannot be appended to, also while there is nothing to append."""
    gone: bool = False
    """The destination topic is not the one it was: nothing is appended any more."""
    failures: int = 0
    standby_until_ns: int = 0
    """When a partition that another instance has taken over is taken back, unless the other makes progress."""
    segments_read: int = 0
    records: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    deleted: list[tuple[int, int]] = field(default_factory=list)
    lag_ms: int | None = None
    checkpoints_saved: int = 0
    unreadable: int = 0
    faults: int = 0

    @property
    def settled(self) -> bool:
        """True if nothing can be done now but wait."""
        stuck = self.fault is not None or self.unreachable is not None or bool(self.standby_until_ns)
        begun = self.worker.phase is not Phase.INIT
        return self.running is None and (stuck or (begun and self.waits))

    def status(self) -> TreePartition:
        waiting = sum(segment.end >= self.worker.next for segment in self.worker.listing.segments)
        state = _STATES[self.worker.phase]
        if state == "in step" and waiting:
            state = "late segment" if self.worker.failures else "catching up"
        if self.standby_until_ns:
            state = "standby"
        fault, end = self.fault or self.unreachable or self.absent, self.worker.listing.source_end
        return TreePartition(
            region=self.source.region,
            topic=self.source.topic,
            partition=self.source.partition,
            destination=self.destination.where.topic,
            state="faulted" if fault is not None else state,
            fault=fault,
            checkpoint=self.worker.checkpoint,
            segments_waiting=waiting,
            segments_read=self.segments_read,
            records=self.records,
            lost=tuple(self.lost),
            deleted=tuple(self.deleted),
            lag_ms=self.lag_ms,
            checkpoints_saved=self.checkpoints_saved,
            unreadable=self.unreadable,
            faults=self.faults,
            lag_offsets=None if end is None else max(end - self.worker.next, 0),
        )

    def work(
        self,
        process: Process,
        client: KafkaClient,
        tree: Tree,
        checkpoints: Checkpoints,
        *,
        records_max: int,
        clock_ns: Callable[[], int],
        stop: threading.Event,
    ) -> Outcome:
        """Produce the records of a segment. Called in a thread of its own, one at a time for each partition."""
        checkpoint = self.worker.checkpoint
        try:
            if not self.destination.is_open:
                found = self.destination.open(client, checkpoints)
                if found is not None and (checkpoint is None or found > checkpoint):
                    return Outcome(checkpoint=found)  # another instance came further: choose again
            batches = tree.batches(self.source, process.segment, process.first, records_max=records_max)
            for batch in batches:
                if stop.is_set():
                    return Outcome(checkpoint=checkpoint)
                offsets = number_column(batch.column("offset"))
                reached = Checkpoint(
                    region=self.source.region,
                    topic=self.source.topic,
                    partition=self.source.partition,
                    offset=int(offsets[-1]),
                    time_ns=clock_ns(),
                )
                self.destination.append(client, batch, reached)
                checkpoints.saved(reached)
                checkpoint = reached.offset
                self.checkpoints_saved += 1
                self.records += batch.num_rows
                oldest_ms = int(np.min(number_column(batch.column("timestamp_ms"))))
                self.lag_ms = max(0, clock_ns() // 1_000_000 - oldest_ms)
        except MaxbrodError as error:
            return Outcome(checkpoint=checkpoint, error=error)
        # A segment ends at its name's end, also if its last records were removed.
        return Outcome(checkpoint=process.segment.end, whole=True)

    def settle(self, outcome: Outcome, now_ns: int, settings: Settings, *, takeover_ns: int) -> None:
        """Take the outcome of `work` into account."""
        process, error = self.process, outcome.error
        self.running = self.process = None
        self.waits = False
        if process is None:
            return
        progress = outcome.checkpoint is not None and outcome.checkpoint >= process.first
        if progress and process.lost is not None:
            self.lost.append(process.lost)
            if process.deleted:
                self.deleted.append(process.lost)
            why = ": the source had deleted them before egress read them" if process.deleted else ""
            _LOG.warning("%s: lost the offsets %d to %d%s", self.source, *process.lost, why)
        self.failures = 0 if progress or error is None else self.failures + 1
        self.fault, self.due_ns = None, now_ns
        if outcome.whole and outcome.checkpoint is not None:
            self.segments_read += 1
            self.worker = machine.processed(self.worker, outcome.checkpoint)
        elif isinstance(error, ObjectNotFoundError | CorruptDataError | UnsupportedFormatError):
            self.unreadable += 1
            _LOG.warning("%s cannot be read: %s", process.segment.path, error)
            self.worker = machine.unreadable(self.worker, process.segment, outcome.checkpoint, now_ns, settings)
        else:
            self.worker = machine.interrupted(self.worker, outcome.checkpoint)
            self._fail(error, now_ns, takeover_ns)

    def _fail(self, error: MaxbrodError | None, now_ns: int, takeover_ns: int) -> None:
        if error is None:
            return
        if isinstance(error, ProducerFencedError):
            _LOG.warning("%s: another instance has taken it over (%s)", self.source, error)
            self.standby_until_ns = now_ns + takeover_ns
            return
        self.fault = str(error)
        self.faults += 1
        self.gone = isinstance(error, TopicGoneError)
        wait_ns = min(_RETRY_FIRST_NS << min(self.failures, 10), _RETRY_MAX_NS)
        self.due_ns = now_ns + wait_ns
        _LOG.warning("%s: %s", self.source, error)

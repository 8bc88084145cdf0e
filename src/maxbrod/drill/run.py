"""A drill: restores a sample of an archive into scratch topics, compares it with the archive, and removes it again.

It proves that the archive can be restored, by restoring it. It always removes what it created: itself, or if its
process is killed, the next drill does.
"""

from __future__ import annotations

import logging
import platform
import random
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.archive import open_archive
from maxbrod.archive.proofs import Proof, ProofKind, record_proof
from maxbrod.compare.archived import measure_topics
from maxbrod.compare.plan.pairs import CompareRequest
from maxbrod.compare.run import Comparison
from maxbrod.drill.plan import DrillRequest, Sample, draw, drill_request
from maxbrod.drill.report import NOT_COMPARED, Covered, DrillReport, DrillVerdict, covered_of
from maxbrod.drill.state import delete_scratch, forget, own_drill, remember, sweep
from maxbrod.errors import EXIT_DONE, MaxbrodError, RefusedError, UnavailableError, UsageError
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition, now_ms
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind, refusal
from maxbrod.restore.run import Restore
from maxbrod.work.executor import Workers
from maxbrod.work.preflight import needs_of
from maxbrod.work.progress import OnProgress, Progress, silent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from maxbrod.compare.report import CompareReport
    from maxbrod.config import Config, KafkaConfig
    from maxbrod.restore.plan.plan import RestorePlan
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.restore.report import RestoreReport
    from maxbrod.work.session import Session

_LOG: Final = logging.getLogger(__name__)
_SEEDS: Final = 1 << 32
_PACKAGES: Final = ("maxbrod", "pyspark", "pyarrow", "kafka-python", "numba")


@dataclass(slots=True)
class _DrillState:
    """The state of a running drill, which becomes its report."""

    drill_id: str
    started_at_ms: int
    cluster_id: str = ""
    run_id: str | None = None
    seed: int | None = None
    known: int = 0
    covered: tuple[Covered, ...] = ()
    durations_s: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    restored: RestoreReport | None = None
    compared: CompareReport | None = None
    error: Mapping[str, Any] | None = None
    failures: list[Mapping[str, Any]] = field(default_factory=list)
    leftovers: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()

    def add_failures(self, partitions: Iterable[tuple[str, int, Mapping[str, Any] | None]]) -> None:
        """Record the failures of partitions; the gravest becomes the drill's error."""
        for topic, partition, failure in partitions:
            if failure is not None:
                # A topic that was compared as a whole has no partition.
                where = topic if partition < 0 else f"{topic}-{partition}"
                self.failures.append({"where": where, "topic": topic, "partition": partition, **failure})
        if self.failures:
            self.error = max(self.failures, key=lambda each: int(each["exit_code"]))

    def outcome_of(self, covered: Covered) -> str:
        where = (covered.topic, covered.partition)
        if any((failure.get("topic"), failure.get("partition")) == where for failure in self.failures):
            return "failed"
        compared = () if self.compared is None else self.compared.partitions
        mine = [each for each in compared if (each.source_topic, each.partition) in {where, (covered.topic, -1)}]
        if not mine or any(each.failure is not None for each in mine):
            return NOT_COMPARED
        return "equal" if all(each.equal for each in mine) else "differs"

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.durations_s[what] = round(time.monotonic() - started, 3)


class Drill:
    """One drill of `config.archive` in the cluster `config.kafka`."""

    def __init__(
        self,
        config: Config,
        request: DrillRequest,
        *,
        session: Session | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
    ) -> None:
        if config.kafka is None:
            raise UsageError("no cluster is given for the drill", hint="give --bootstrap, or --sandbox")
        if config.archive is None:
            raise UsageError("no archive is given", hint="give --archive, or archive in the configuration")
        self._config, self._request, self._session = config, request, session
        self._kafka: KafkaConfig = config.kafka
        self._archive = open_archive(config.archive, config.storage, layout=config.layout)
        self._on_progress = on_progress
        self._patience_s = config.patience
        self.stop = stop or threading.Event()

    def run(self) -> DrillReport:
        """Run the drill. Errors are in the report. The drill's topics are removed, if the cluster allows it."""
        state = _DrillState(drill_id=uuid.uuid4().hex[:16], started_at_ms=now_ms())
        try:
            self._prepare(state)
            self._drill(state)
        except MaxbrodError as error:
            state.error = error.as_dict()
        finally:
            # Also after any other exception: no topic of a drill may outlive it.
            self._on_progress(Progress(phase="cleaning up"))
            with state.timed("clean up"):
                self._clean_up(state)
        report = self._report(state)
        self._record(report)
        return report

    def _record(self, report: DrillReport) -> None:
        """Keep the outcome for `maxbrod status`. A drill that was stopped proves nothing."""
        if report.verdict is DrillVerdict.STOPPED:
            return
        details: dict[str, Any] = {
            "drill_id": report.drill_id,
            "partitions": len(report.covered),
            "partitions_known": report.partitions_known,
        }
        if report.restore is not None and "restore" in report.durations_s:
            details |= {"records": report.restore["records"], "restore_s": report.durations_s["restore"]}
        proof = Proof(
            kind=ProofKind.DRILL,
            verdict=str(report.verdict),
            sound=report.verdict is DrillVerdict.PROVEN,
            started_at_ms=report.started_at_ms,
            finished_at_ms=report.finished_at_ms,
            details=details,
        )
        unrecorded = record_proof(self._archive.storage, proof)
        if unrecorded is not None:
            _LOG.warning("the drill is not recorded for 'maxbrod status': %s", unrecorded)

    def _prepare(self, state: _DrillState) -> None:
        with KafkaClient(self._kafka, stop=self.stop) as client:
            state.cluster_id = client.metadata([], deadline=Deadline.after(self._patience_s)).cluster_id or ""
        storage = self._archive.storage
        remember(storage, own_drill(state.drill_id, state.cluster_id, sandbox=self._request.sandbox))
        state.leftovers = tuple(sweep(storage, self._kafka, state.cluster_id, patience_s=self._patience_s))

    def _drill(self, state: _DrillState) -> None:
        request, size = self._chosen(state)
        with Workers(
            self._config.spark,
            needs=needs_of(self._config),
            session=self._session,
            on_progress=self._on_progress,
            stop=self.stop,
        ) as workers:
            # If the restore needs Spark, it starts here: its start is not part of the measured time of a restore.
            workers.for_bytes(size)
            with state.timed("restore"):
                state.restored = self._restore(workers, request, state)
            if state.restored.exit_code != EXIT_DONE:
                state.add_failures(
                    (partition.source, partition.partition, partition.failure)
                    for partition in state.restored.partitions
                )
                return
            self._refuse_if_stopped()
            with state.timed("compare"):
                state.compared = self._compare(workers, state.restored.restore_id)
        state.add_failures(
            (partition.source_topic, partition.partition, partition.failure) for partition in state.compared.partitions
        )

    def _chosen(self, state: _DrillState) -> tuple[RestoreRequest, int]:
        """The restore of the sample, and its size in bytes."""
        sources = [
            source
            for group, _ in measure_topics(self._archive, self._request.selection)
            for source in group
            if source.rows or source.troubles
        ]
        by_place = {TopicPartition(topic=each.topic, partition=each.partition): each for each in sources}
        if not by_place:
            raise UsageError("the archive has no records to restore", hint="see 'maxbrod ls'")
        everything = self._request.sample == Sample()
        seed = random.randrange(_SEEDS) if self._request.seed is None else self._request.seed  # noqa: S311 - no secret
        drawn = draw(list(by_place), self._request.sample, seed)
        state.known, state.seed = len(by_place), None if everything else seed
        state.covered = tuple(covered_of(by_place[where]) for where in drawn)
        request = drill_request(
            state.drill_id,
            drawn,
            {by_place[where].topic_id for where in drawn},
            accept_gaps=self._request.accept_gaps,
            as_of=self._request.selection.as_of,
        )
        return request, sum(by_place[where].bytes for where in drawn)

    def _restore(self, workers: Workers, request: RestoreRequest, state: _DrillState) -> RestoreReport:
        with Restore(self._config, request, workers=workers, on_progress=self._on_progress, stop=self.stop) as work:
            plan = work.plan()
            state.run_id = plan.archive.run_id
            state.warnings = tuple(_warnings(plan))
            refused = refusal(plan.obstacles)
            if refused is not None:
                state.failures += [_refused(obstacle) for obstacle in plan.obstacles if obstacle.fatal]
                raise refused
            if any(topic.target.exists for topic in plan.topics):
                raise RefusedError("a scratch topic already exists", hint="run the drill again")
            self._refuse_if_stopped()
            return work.run(plan)

    def _compare(self, workers: Workers, restore_id: str) -> CompareReport:
        request = CompareRequest(restore=restore_id)
        with Comparison(self._config, request, workers=workers, on_progress=self._on_progress) as work:
            return work.run()

    def _refuse_if_stopped(self) -> None:
        if self.stop.is_set():
            raise UnavailableError("the drill was stopped on request", operation="drill", hint="run it again")

    def _clean_up(self, state: _DrillState) -> None:
        """Remove topics and records of the drill, over new connections, which a stop does not interrupt."""
        left: list[str] = []
        try:
            if state.cluster_id:
                _, left = delete_scratch(self._kafka, state.drill_id, patience_s=self._patience_s)
            if not left:
                forget(self._archive.storage, state.drill_id)
        except MaxbrodError as error:
            # The object in the archive lets the next drill find and remove the rest.
            state.error = state.error or error.as_dict()
        state.remains = tuple(left)

    def _report(self, state: _DrillState) -> DrillReport:
        restored = state.restored
        return DrillReport(
            drill_id=state.drill_id,
            verdict=self._verdict(state),
            archive=self._archive.url,
            run_id=state.run_id,
            cluster="sandbox" if self._request.sandbox else self._kafka.bootstrap,
            cluster_id=state.cluster_id,
            started_at_ms=state.started_at_ms,
            finished_at_ms=now_ms(),
            sample=str(self._request.sample),
            seed=state.seed,
            partitions_known=state.known,
            covered=tuple(replace(each, outcome=state.outcome_of(each)) for each in state.covered),
            durations_s=state.durations_s,
            versions={**{name: version(name) for name in _PACKAGES}, "python": platform.python_version()},
            restore=None
            if restored is None
            else {"records": restored.records, "warnings": state.warnings, "exit_code": restored.exit_code},
            comparison=None if state.compared is None else state.compared.as_dict(),
            error=state.error,
            failures=tuple(state.failures),
            leftovers=state.leftovers,
            remains=state.remains,
        )

    def _verdict(self, state: _DrillState) -> DrillVerdict:
        if state.compared is not None and state.error is None:
            return DrillVerdict.PROVEN if state.compared.equal else DrillVerdict.DIFFERS
        return DrillVerdict.STOPPED if self.stop.is_set() else DrillVerdict.FAILED


def _refused(obstacle: Obstacle) -> dict[str, Any]:
    error = {"where": obstacle.where, "error": str(obstacle.kind), "message": obstacle.what}
    return {**error, "offset": obstacle.offset, "hint": obstacle.hint}


def _warnings(plan: RestorePlan) -> Iterator[str]:
    """The warnings of a plan. Unknown rights are none: the restore shows whether they were needed."""
    for obstacle in plan.obstacles:
        if obstacle.kind is not ObstacleKind.RIGHT_UNKNOWN:
            yield obstacle.what if obstacle.where is None else f"{obstacle.where}: {obstacle.what}"

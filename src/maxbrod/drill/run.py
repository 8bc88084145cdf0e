"""A drill: a sample of an archive is restored into scratch topics, compared with it, and removed again.

It proves that the archive can be restored, by restoring it. Whatever happens, what it created goes away: at once, or
where the process is killed, by the next drill.
"""

from __future__ import annotations

import platform
import random
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.opening import open_archive
from maxbrod.compare.archived import measure_topics
from maxbrod.compare.plan.pairs import CompareRequest
from maxbrod.compare.run import Comparison
from maxbrod.drill.plan import DrillRequest, Sample, draw, drill_request
from maxbrod.drill.report import NOT_COMPARED, Covered, DrillReport, DrillVerdict, covered_of
from maxbrod.drill.state import delete_scratch, forget, own_drill, remember, sweep
from maxbrod.engine.jobs import cancelled_by
from maxbrod.engine.progress import Progress, silent
from maxbrod.engine.session import open_configured
from maxbrod.errors import EXIT_DONE, MaxbrodError, RefusedError, UnavailableError, UsageError
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition, now_ms
from maxbrod.restore.plan.obstacles import ObstacleKind, refusal
from maxbrod.restore.run import Restore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from maxbrod.compare.report import CompareReport
    from maxbrod.config import Config, KafkaConfig
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session
    from maxbrod.restore.plan.obstacles import Obstacle
    from maxbrod.restore.plan.plan import RestorePlan
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.restore.report import RestoreReport

_SEEDS: Final = 1 << 32
_PACKAGES: Final = ("maxbrod", "pyspark", "pyarrow", "kafka-python", "numba")


@dataclass(slots=True)
class _Found:
    """A drill under way: what will be reported."""

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

    def fail(self, told: Iterable[tuple[str, int, Mapping[str, Any] | None]]) -> None:
        """By failures of partitions, if there are any; the gravest is the drill's error."""
        for topic, partition, failure in told:
            if failure is not None:
                # A topic that was compared as a whole has no partition.
                where = topic if partition < 0 else f"{topic}-{partition}"
                self.failures.append({"where": where, "topic": topic, "partition": partition, **failure})
        if self.failures:
            self.error = max(self.failures, key=lambda each: int(each["exit_code"]))

    def outcome_of(self, covered: Covered) -> str:
        where = (covered.topic, covered.partition)
        if any((each.get("topic"), each.get("partition")) == where for each in self.failures):
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
            raise UsageError("no cluster is named to drill in", hint="give --bootstrap, or --sandbox")
        if config.archive is None:
            raise UsageError("no archive is named", hint="give --archive, or archive in the configuration")
        self._config, self._request, self._session = config, request, session
        self._kafka: KafkaConfig = config.kafka
        self._archive = open_archive(config.archive, config.storage, layout=config.layout)
        self._on_progress = on_progress
        self._patience_s = config.patience
        self.stop = stop or threading.Event()

    def run(self) -> DrillReport:
        """Whatever goes wrong is in the report, and nothing of the drill is left in the cluster if that can be had."""
        found = _Found(drill_id=uuid.uuid4().hex[:16], started_at_ms=now_ms())
        try:
            self._prepare(found)
            self._drill(found)
        except MaxbrodError as error:
            found.error = error.as_dict()
        finally:
            # Also when something else ends it: nothing of a drill may outlive it.
            self._on_progress(Progress(phase="cleaning up"))
            with found.timed("clean up"):
                self._clean_up(found)
        return self._report(found)

    def _prepare(self, found: _Found) -> None:
        with KafkaClient(self._kafka, stop=self.stop) as client:
            found.cluster_id = client.metadata([], deadline=Deadline.after(self._patience_s)).cluster_id or ""
        storage = self._archive.storage
        found.leftovers = tuple(sweep(storage, self._kafka, found.cluster_id, patience_s=self._patience_s))
        remember(storage, own_drill(found.drill_id, found.cluster_id, sandbox=self._request.sandbox))

    def _drill(self, found: _Found) -> None:
        request = self._chosen(found)
        self._on_progress(Progress(phase="starting Spark"))
        with (
            open_configured(self._config.spark, self._session) as session,
            cancelled_by(session, self.stop),
        ):
            with found.timed("restore"):
                found.restored = self._restore(session, request, found)
            if found.restored.exit_code != EXIT_DONE:
                found.fail((each.source, each.partition, each.failure) for each in found.restored.partitions)
                return
            self._refuse_if_stopped()
            with found.timed("compare"):
                found.compared = self._compare(session, found.restored.restore_id)
        found.fail((each.source_topic, each.partition, each.failure) for each in found.compared.partitions)

    def _chosen(self, found: _Found) -> RestoreRequest:
        sources = [
            source
            for group, _ in measure_topics(self._archive, self._request.selection)
            for source in group
            if source.rows or source.troubles
        ]
        by_place = {TopicPartition(topic=each.topic, partition=each.partition): each for each in sources}
        if not by_place:
            raise UsageError("the archive has no records to drill with", hint="see 'maxbrod ls'")
        everything = self._request.sample == Sample()
        seed = random.randrange(_SEEDS) if self._request.seed is None else self._request.seed  # noqa: S311 - no secret
        drawn = draw(list(by_place), self._request.sample, seed)
        found.known, found.seed = len(by_place), None if everything else seed
        found.covered = tuple(covered_of(by_place[where]) for where in drawn)
        return drill_request(
            found.drill_id,
            drawn,
            {by_place[where].topic_id for where in drawn},
            accept_gaps=self._request.accept_gaps,
            as_of=self._request.selection.as_of,
        )

    def _restore(self, session: Session, request: RestoreRequest, found: _Found) -> RestoreReport:
        with Restore(self._config, request, session=session, on_progress=self._on_progress, stop=self.stop) as work:
            plan = work.plan()
            found.run_id = plan.archive.run_id
            found.warnings = tuple(_warnings(plan))
            refused = refusal(plan.obstacles)
            if refused is not None:
                found.failures += [_refused(each) for each in plan.obstacles if each.fatal]
                raise refused
            if any(topic.target.exists for topic in plan.topics):
                raise RefusedError("a scratch topic is there already", hint="run the drill again")
            self._refuse_if_stopped()
            return work.run(plan)

    def _compare(self, session: Session, restore_id: str) -> CompareReport:
        request = CompareRequest(restore=restore_id)
        with Comparison(self._config, request, session=session, on_progress=self._on_progress) as work:
            return work.run()

    def _refuse_if_stopped(self) -> None:
        if self.stop.is_set():
            raise UnavailableError("it was asked to stop", operation="drill", hint="run it again")

    def _clean_up(self, found: _Found) -> None:
        """With connections of its own, which no stop cuts short."""
        left: list[str] = []
        try:
            if found.cluster_id:
                _, left = delete_scratch(self._kafka, found.drill_id, patience_s=self._patience_s)
            if not left:
                forget(self._archive.storage, found.drill_id)
        except MaxbrodError as error:
            # The next drill finds what is left by the object in the archive.
            found.error = found.error or error.as_dict()
        found.remains = tuple(left)

    def _report(self, found: _Found) -> DrillReport:
        restored = found.restored
        return DrillReport(
            drill_id=found.drill_id,
            verdict=self._verdict(found),
            archive=self._archive.url,
            run_id=found.run_id,
            cluster="sandbox" if self._request.sandbox else self._kafka.bootstrap,
            cluster_id=found.cluster_id,
            started_at_ms=found.started_at_ms,
            finished_at_ms=now_ms(),
            sample=str(self._request.sample),
            seed=found.seed,
            partitions_known=found.known,
            covered=tuple(replace(each, outcome=found.outcome_of(each)) for each in found.covered),
            durations_s=found.durations_s,
            versions={**{name: version(name) for name in _PACKAGES}, "python": platform.python_version()},
            restore=None
            if restored is None
            else {"records": restored.records, "warnings": found.warnings, "exit_code": restored.exit_code},
            comparison=None if found.compared is None else found.compared.as_dict(),
            error=found.error,
            failures=tuple(found.failures),
            leftovers=found.leftovers,
            remains=found.remains,
        )

    def _verdict(self, found: _Found) -> DrillVerdict:
        if found.compared is not None and found.error is None:
            return DrillVerdict.PROVEN if found.compared.equal else DrillVerdict.DIFFERS
        return DrillVerdict.STOPPED if self.stop.is_set() else DrillVerdict.FAILED


def _refused(obstacle: Obstacle) -> dict[str, Any]:
    told = {"where": obstacle.where, "error": str(obstacle.kind), "message": obstacle.what}
    return {**told, "offset": obstacle.offset, "hint": obstacle.hint}


def _warnings(plan: RestorePlan) -> Iterator[str]:
    """Rights of which nobody knows are none: the restore shows whether they were needed."""
    for each in plan.obstacles:
        if each.kind is not ObstacleKind.RIGHT_UNKNOWN:
            yield each.what if each.where is None else f"{each.where}: {each.what}"

"""A drill: restores a sample of an archive into scratch topics, compares it with the archive, and removes it again.

It proves that the archive can be restored, by restoring it. It always removes what it created: itself, or if its
process is killed, the next drill does.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import random
import re
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from maxbrod import strict_json
from maxbrod.archive.archive import Proof, ProofKind, open_archive, record_proof
from maxbrod.catalog.log import time_of
from maxbrod.compare.archived import measure_topics
from maxbrod.compare.plan import CompareRequest
from maxbrod.compare.report import CompareReport
from maxbrod.compare.run import Comparison
from maxbrod.config import KafkaConfig
from maxbrod.drill.plan import DrillRequest, Sample, draw, drill_request, prefix_of
from maxbrod.drill.report import (
    NOT_COMPARED,
    Covered,
    DrilledSchemas,
    DrillReport,
    DrillVerdict,
    covered_of,
)
from maxbrod.drill.schemas import captured_schemas, drill_schemas
from maxbrod.errors import (
    EXIT_DONE,
    EXIT_USAGE,
    MaxbrodError,
    ObjectNotFoundError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from maxbrod.kafka.admin import delete_topics
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition, now_ms
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind, refusal
from maxbrod.restore.plan.plan import RestorePlan
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.report import RestoreReport
from maxbrod.restore.run import Restore
from maxbrod.restore.state import delete_restore, restores_into
from maxbrod.storage.interface import ObjectInfo, Storage
from maxbrod.work.executor import Workers
from maxbrod.work.preflight import needs_of
from maxbrod.work.work import Work

_LOG: Final = logging.getLogger(__name__)
_SEEDS: Final = 1 << 32
_TOPICS_NAMED: Final = 10_000
"""The topics that a proof names."""
_EQUAL: Final = "equal"
_PACKAGES: Final = ("maxbrod", "pyspark", "pyarrow", "kafka-python", "numba")


class Drill:
    """One drill of `config.archive` in the cluster `config.kafka`."""

    def __init__(self, work: Work, request: DrillRequest) -> None:
        self._work, self._request, config = work, request, work.config
        if config.kafka is None:
            raise UsageError("no cluster is given for the drill", hint="give --bootstrap, or --sandbox")
        self._kafka, self._patience_s = config.kafka, config.patience
        self._archive = open_archive(config.archive_url, config.storage, layout=config.layout, records=True)
        self._drill_id, self._cluster_id = uuid.uuid4().hex[:16], ""
        self._run_id: str | None = None
        self._seed: int | None = None
        self._known = 0
        self._covered: tuple[Covered, ...] = ()
        self._durations_s: dict[str, float] = {}
        self._warnings: tuple[str, ...] = ()
        self._restored: RestoreReport | None = None
        self._compared: CompareReport | None = None
        self._schemas: DrilledSchemas | None = None
        self._error: Mapping[str, Any] | None = None
        self._failures: list[Mapping[str, Any]] = []
        self._leftovers: tuple[str, ...] = ()
        self._remains: tuple[str, ...] = ()

    def run(self) -> DrillReport:
        """Run the drill. Errors are in the report. The drill's topics are removed, if the cluster allows it."""
        started_at_ms = now_ms()
        try:
            self._prepare()
            self._drill()
        except MaxbrodError as error:
            self._error = error.as_dict()
        finally:
            # Also after any other exception: no topic of a drill may outlive it.
            self._work.tell("cleaning up")
            with self._timed("clean up"):
                self._clean_up()
        report = self._report(started_at_ms)
        self._record(report)
        return report

    def _record(self, report: DrillReport) -> None:
        """Keep the outcome for `maxbrod status`. A drill that was stopped or asked for wrongly proves nothing."""
        mistaken = report.error is not None and report.error["exit_code"] == EXIT_USAGE
        if report.verdict is DrillVerdict.STOPPED or mistaken:
            return
        details: dict[str, Any] = {
            "drill_id": report.drill_id,
            "partitions": len(report.covered),
            "partitions_known": report.partitions_known,
            "topics": _proven_topics(report.covered)[:_TOPICS_NAMED],
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

    def _prepare(self) -> None:
        with KafkaClient(self._kafka, stop=self._work.stop) as client:
            self._cluster_id = client.metadata([], deadline=Deadline.after(self._patience_s)).cluster_id or ""
        storage = self._archive.storage
        remember(storage, own_drill(self._drill_id, self._cluster_id, sandbox=self._request.sandbox))
        self._leftovers = tuple(sweep(storage, self._kafka, self._cluster_id, patience_s=self._patience_s))

    def _drill(self) -> None:
        # Read first: a damaged capture ends the drill before anything is restored for nothing.
        captured = captured_schemas(self._archive, self._request)
        sample, size = self._chosen()
        workers = self._work.workers(needs_of(self._work.config))
        # If the restore needs Spark, it starts here: its start is not part of the measured time of a restore.
        workers.for_bytes(size)
        with self._timed("restore"):
            self._restored = self._restore(workers, sample)
        if self._restored.exit_code != EXIT_DONE:
            self._add_failures(
                (partition.source, partition.partition, partition.failure) for partition in self._restored.partitions
            )
            return
        self._refuse_if_stopped()
        request = CompareRequest(restore=self._restored.restore_id)
        with self._timed("compare"), Comparison(self._work, request, workers=workers) as comparison:
            self._compared = comparison.run()
        self._add_failures(
            (partition.source_topic, partition.partition, partition.failure) for partition in self._compared.partitions
        )
        if captured is not None:
            self._refuse_if_stopped()
            drawn = [TopicPartition(topic=range_.topic, partition=range_.partition) for range_ in self._covered]
            with self._timed("schemas"):
                self._schemas = drill_schemas(
                    captured, self._work.config, self._kafka, self._request, self._drill_id, drawn
                )

    def _chosen(self) -> tuple[RestoreRequest, int]:
        """The restore of the sample, and its size in bytes."""
        sources = [
            source
            for group, _ in measure_topics(self._archive, self._request.selection)
            for source in group
            if source.rows or source.troubles
        ]
        by_place = {TopicPartition(topic=source.topic, partition=source.partition): source for source in sources}
        if not by_place:
            raise UsageError("the archive has no records to restore", hint="see 'maxbrod ls'")
        everything = self._request.sample == Sample()
        seed = random.randrange(_SEEDS) if self._request.seed is None else self._request.seed  # noqa: S311 - no secret
        drawn = draw(list(by_place), self._request.sample, seed)
        self._known, self._seed = len(by_place), None if everything else seed
        self._covered = tuple(covered_of(by_place[where]) for where in drawn)
        request = drill_request(
            self._drill_id,
            drawn,
            {by_place[where].topic_id for where in drawn},
            accept_gaps=self._request.accept_gaps,
            as_of=self._request.selection.as_of,
        )
        return request, sum(by_place[where].bytes for where in drawn)

    def _restore(self, workers: Workers, request: RestoreRequest) -> RestoreReport:
        with Restore(self._work, request, workers=workers) as restoring:
            plan = restoring.plan()
            self._run_id = plan.archive.run_id
            self._warnings = tuple(_warnings(plan))
            refused = refusal(plan.obstacles)
            if refused is not None:
                self._failures += [_refused(obstacle) for obstacle in plan.obstacles if obstacle.fatal]
                raise refused
            if any(topic.target.exists for topic in plan.topics):
                raise RefusedError("a scratch topic already exists", hint="run the drill again")
            self._refuse_if_stopped()
            return restoring.run(plan)

    def _add_failures(self, partitions: Iterable[tuple[str, int, Mapping[str, Any] | None]]) -> None:
        """Record the failures of partitions; the gravest becomes the drill's error."""
        for topic, partition, failure in partitions:
            if failure is not None:
                # A topic that was compared as a whole has no partition.
                where = topic if partition < 0 else f"{topic}-{partition}"
                self._failures.append({"where": where, "topic": topic, "partition": partition, **failure})
        if self._failures:
            self._error = max(self._failures, key=lambda outcome: int(outcome["exit_code"]))

    def _outcome_of(self, covered: Covered) -> str:
        where = (covered.topic, covered.partition)
        if any((failure.get("topic"), failure.get("partition")) == where for failure in self._failures):
            return "failed"
        compared = () if self._compared is None else self._compared.partitions
        mine = [
            comparison
            for comparison in compared
            if (comparison.source_topic, comparison.partition) in {where, (covered.topic, -1)}
        ]
        if not mine or any(comparison.failure is not None for comparison in mine):
            return NOT_COMPARED
        return "equal" if all(comparison.equal for comparison in mine) else "differs"

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._durations_s[what] = round(time.monotonic() - started, 3)

    def _refuse_if_stopped(self) -> None:
        if self._work.is_stopped():
            raise UnavailableError("the drill was stopped on request", operation="drill", hint="run it again")

    def _clean_up(self) -> None:
        """Remove topics and records of the drill, over new connections, which a stop does not interrupt."""
        left: list[str] = []
        try:
            if self._cluster_id:
                _, left = delete_scratch(self._kafka, self._drill_id, patience_s=self._patience_s)
            if not left:
                forget(self._archive.storage, self._drill_id)
        except MaxbrodError as error:
            # The object in the archive lets the next drill find and remove the rest.
            self._error = self._error or error.as_dict()
        self._remains = tuple(left)

    def _report(self, started_at_ms: int) -> DrillReport:
        restored = self._restored
        return DrillReport(
            drill_id=self._drill_id,
            verdict=self._verdict(),
            archive=self._archive.url,
            run_id=self._run_id,
            cluster="sandbox" if self._request.sandbox else self._kafka.bootstrap,
            cluster_id=self._cluster_id,
            started_at_ms=started_at_ms,
            finished_at_ms=now_ms(),
            sample=str(self._request.sample),
            seed=self._seed,
            partitions_known=self._known,
            covered=tuple(replace(range_, outcome=self._outcome_of(range_)) for range_ in self._covered),
            durations_s=self._durations_s,
            versions={**{name: version(name) for name in _PACKAGES}, "python": platform.python_version()},
            restore=None
            if restored is None
            else {"records": restored.records, "warnings": self._warnings, "exit_code": restored.exit_code},
            comparison=None if self._compared is None else self._compared.as_dict(),
            schemas=self._schemas,
            error=self._error,
            failures=tuple(self._failures),
            leftovers=self._leftovers,
            remains=self._remains,
        )

    def _verdict(self) -> DrillVerdict:
        if self._compared is not None and self._error is None:
            proven = self._compared.equal and (self._schemas is None or self._schemas.proven)
            return DrillVerdict.PROVEN if proven else DrillVerdict.DIFFERS
        return DrillVerdict.STOPPED if self._work.is_stopped() else DrillVerdict.FAILED


def _proven_topics(covered: Iterable[Covered]) -> list[str]:
    """The topics of which every partition that was drawn came back equal."""
    outcomes: dict[str, set[str]] = {}
    for range_ in covered:
        outcomes.setdefault(range_.topic, set()).add(range_.outcome)
    return sorted(topic for topic, found in outcomes.items() if found == {_EQUAL})


def _refused(obstacle: Obstacle) -> dict[str, Any]:
    error = {"where": obstacle.where, "error": str(obstacle.kind), "message": obstacle.what}
    return {**error, "offset": obstacle.offset, "hint": obstacle.hint}


def _warnings(plan: RestorePlan) -> Iterator[str]:
    """The warnings of a plan. Unknown rights are none: the restore shows whether they were needed."""
    for obstacle in plan.obstacles:
        if obstacle.kind is not ObstacleKind.RIGHT_UNKNOWN:
            yield obstacle.what if obstacle.where is None else f"{obstacle.where}: {obstacle.what}"


DEAD_AFTER_MS: Final = 24 * 3600 * 1000
"""For drills on another machine, whose processes cannot be seen from here."""

_FOLDER: Final = "drills"

_ID: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillOwner:
    """The process of a drill, in enough detail to know whether it still runs."""

    drill_id: str
    cluster_id: str
    sandbox: bool
    """Its cluster ends with it."""
    machine: str
    pid: int
    born: str
    started_at_ms: int


def own_drill(drill_id: str, cluster_id: str, *, sandbox: bool) -> DrillOwner:
    """The record of a drill by this process."""
    return DrillOwner(
        drill_id=drill_id,
        cluster_id=cluster_id,
        sandbox=sandbox,
        machine=_machine(),
        pid=os.getpid(),
        born=_born(os.getpid()),
        started_at_ms=now_ms(),
    )


def remember(storage: Storage, owner: DrillOwner) -> None:
    storage.put(_path(owner.drill_id), json.dumps(asdict(owner), sort_keys=True).encode())


def forget(storage: Storage, drill_id: str) -> None:
    """Delete the record of a drill, and what its restore left in the archive."""
    for restore_id in restores_into(storage, prefix_of(drill_id)):
        delete_restore(storage, restore_id)
    storage.delete([_path(drill_id)])


def delete_scratch(kafka: KafkaConfig, drill_id: str, *, patience_s: float) -> tuple[list[str], list[str]]:
    """Delete a drill's topics; returns the deleted ones, and those that could not be deleted."""
    prefix = prefix_of(drill_id)
    with KafkaClient(kafka) as client:
        topics = client.metadata(deadline=Deadline.after(patience_s)).topics
        mine = {topic.topic_id: name for name, topic in topics.items() if name.startswith(prefix)}
        outcomes = delete_topics(client, mine, deadline=Deadline.after(patience_s)) if mine else {}
    gone = sorted(mine[topic_id] for topic_id, outcome in outcomes.items() if outcome.done)
    return gone, sorted(set(mine.values()) - set(gone))


def sweep(storage: Storage, kafka: KafkaConfig, cluster_id: str, *, patience_s: float) -> list[str]:
    """Remove what dead drills have left in this cluster; returns the deleted topics.

    The caller has just written its own record, so that the store's time is known.
    """
    removed = []
    listed = list(storage.list(_FOLDER))
    for owner in list(_known(storage, listed)):
        if not _is_dead(owner, time_of(listed)) or not (owner.sandbox or owner.cluster_id == cluster_id):
            continue
        left: list[str] = []
        if not owner.sandbox:
            gone, left = delete_scratch(kafka, owner.drill_id, patience_s=patience_s)
            removed += gone
        if not left:
            forget(storage, owner.drill_id)
    return removed


def _known(storage: Storage, listed: Iterable[ObjectInfo]) -> Iterator[DrillOwner]:
    """The recorded drills. An unreadable object proves nothing and is left alone."""
    for info in listed:
        with suppress(ValueError, TypeError, ObjectNotFoundError):
            owner = DrillOwner(**strict_json.parse(storage.get(info.path)))
            if _ID.fullmatch(owner.drill_id) and info.path == _path(owner.drill_id):
                yield owner


def _is_dead(owner: DrillOwner, at_ms: int) -> bool:
    if owner.machine != _machine():
        return at_ms - owner.started_at_ms > DEAD_AFTER_MS
    return not owner.born or _born(owner.pid) != owner.born


def _path(drill_id: str) -> str:
    return f"{_FOLDER}/{drill_id}.json"


def _machine() -> str:
    """The host, its boot and the pid namespace: equal for two processes that see the same pids."""
    parts = [socket.gethostname()]
    for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        path = Path(name)
        with suppress(OSError):
            parts.append(str(path.readlink()) if path.is_symlink() else path.read_text().strip())
    return "/".join(parts)


def _born(pid: int) -> str:
    """The start time of a process, as the kernel counts it; empty if there is no such process."""
    try:
        # The 22nd field of all, counted after the name, which is in parentheses and may contain anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "alive"
    return "alive"

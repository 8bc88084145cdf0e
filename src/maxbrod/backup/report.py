"""The report of one run of a backup, and its notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from maxbrod.archive.runs import PARTIAL, STOPPED
from maxbrod.errors import EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE, MaxbrodError
from maxbrod.kafka.state.cluster_state import HIDDEN_TOPIC, HIDDEN_TOPICS, ClusterState, MissingState
from maxbrod.notices import Notice, verdict_of, worst_exit_code
from maxbrod.text import counted
from maxbrod.work.report import Report, about

if TYPE_CHECKING:
    from maxbrod.backup.plan.ranges import Failure, PartitionState
    from maxbrod.catalog.rows import Run
    from maxbrod.kafka.produce.transactions import PendingTransaction

HIDDEN: Final = "hidden"
STORAGE: Final = "storage"
REGISTRY: Final = "registry"
_CLOCKS_APART_MS: Final = 1000
"""The clocks of two machines, or one clock that is being adjusted, may differ by this much."""
_FINDINGS_MAX: Final = 1000
_HINTS_MAX: Final = 10
_KEPT: Final = frozenset({"truncated", "generation"})
"""Notices that say how the archive has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """The figures of one incarnation of a topic in one run."""

    topic: str
    topic_id: str
    partitions: int
    records: int
    bytes: int
    """Bytes stored."""
    raw_bytes: int
    """Bytes read."""
    gaps: Mapping[str, int] = field(default_factory=dict)
    """Offsets without data, by reason."""
    waiting: int | None = 0
    """Offsets that are in the log and not in the archive: not read, of open transactions, or written since the run
    began. None if not every partition answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedSchemas:
    """What a run has captured of a schema registry."""

    url: str
    subjects: int
    versions: int
    deleted: int
    """Soft-deleted versions among them."""
    lost: int
    """Versions that the registry no longer has and the archive keeps."""
    changed: bool
    """False if nothing has changed since the last capture, so that nothing was stored."""


def add_up(counts: Iterable[int | None]) -> int | None:
    """The sum; None if one of them is unknown."""
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport(Report):
    """One run of a backup. It is `complete` if every offset up to the planned end is archived or explained."""

    run_id: str
    archive: str
    started_at_ms: int
    finished_at_ms: int
    topics: tuple[TopicReport, ...]
    notices: tuple[Notice, ...]
    objects: int
    version: int
    """The version of the catalog that contains everything reported here."""
    committed: bool
    """False if there was nothing new, or if it could not be stored."""
    recovery_point_ms: int | None
    """Everything written before this moment to the topics of this run can be restored; None: there is none yet."""
    planned: bool = True
    """False if the run ended before it knew what the cluster has."""
    schemas: CapturedSchemas | None = None
    """The schema registry, if one was captured."""
    of_partitions: int | None = None
    """If several instances divide the partitions: how many all of them have. Everything else here is about the
    partitions of this run. None: they are all."""
    published: ClassVar = ("records", "bytes", "raw_bytes", "waiting", "complete", "verdict", "exit_code")

    @property
    def complete(self) -> bool:
        return self.exit_code == EXIT_DONE

    @property
    def exit_code(self) -> int:
        """The code of the most severe notice: archive not written, then damage, then missing records."""
        return worst_exit_code(self.notices)

    @property
    def partial(self) -> bool:
        """True if topics that were asked for may be hidden from this user."""
        return is_partial(self.notices)

    @property
    def verdict(self) -> str:
        """The exit code in a word. A run that found no topic is not called complete: it has archived nothing."""
        return verdict_of(self.exit_code, nothing_selected=self.nothing_selected)

    @property
    def nothing_selected(self) -> bool:
        """True if none of the topics that were asked for exists."""
        return not self.topics and any(notice.kind == "missing" for notice in self.notices)

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def bytes(self) -> int:
        return sum(topic.bytes for topic in self.topics)

    @property
    def raw_bytes(self) -> int:
        return sum(topic.raw_bytes for topic in self.topics)

    @property
    def waiting(self) -> int | None:
        """Offsets that the cluster has and the archive lacks; None if not every partition answered, or is known."""
        return add_up(topic.waiting for topic in self.topics) if self.planned and not self.partial else None

    def statistics(self) -> dict[str, Any]:
        """The details of the run's row in the catalog."""
        return {
            "command": "backup",
            "topics": len(self.topics),
            "partitions": sum(topic.partitions for topic in self.topics),
            **({} if self.of_partitions is None else {"of_partitions": self.of_partitions}),
            "records": self.records,
            "bytes": self.bytes,
            "raw_bytes": self.raw_bytes,
            "objects": self.objects,
            **({} if self.schemas is None else {"schemas": self.schemas.versions}),
            "recovery_point_ms": self.recovery_point_ms,
            "complete": self.complete,
            "exit_code": self.exit_code,
            **({PARTIAL: True} if self.partial else {}),
            "notices": dict(Counter(notice.kind for notice in self.notices)),
            # Few, and worth keeping: each names offsets that need attention.
            "findings": [str(notice) for notice in self.notices if notice.exit_code or notice.kind in _KEPT][
                :_FINDINGS_MAX
            ],
            "hints": list(dict.fromkeys(one.hint for one in self.notices if one.exit_code and one.hint))[:_HINTS_MAX],
        }


# The notices


def stopped() -> Notice:
    message = "stopped on request: everything up to the last commit is archived"
    return Notice(kind=STOPPED, message=message, hint="run it again to continue", exit_code=EXIT_INCOMPLETE)


def clock_behind(newest: Run | None, now_ms: int) -> Iterator[Notice]:
    """Runs are ordered by commit, whatever the clock says; the times that people read are not."""
    if newest is None or now_ms > newest.finished_at - _CLOCKS_APART_MS:
        return
    behind_s = (newest.finished_at - now_ms) // 1000
    yield Notice(
        kind="clock",
        message=f"this machine's clock is {behind_s} s behind the end of the newest run, {newest.run_id}; runs stay "
        "in the order of their commits, but the times, the name and the recovery point of this run, or of that one, "
        "are wrong",
        hint="set the clock of this machine, or of the one that made the newest run",
    )


def held_back(state: PartitionState, found: PendingTransaction, *, now_ms: int) -> Notice:
    """An open transaction delays its own partition and no other."""
    name = "" if found.transactional_id is None else f" ({found.transactional_id})"
    started_ms = found.last_timestamp_ms if found.started_at_ms is None else found.started_at_ms
    age = "" if started_ms < 0 else f", open for {max(0, now_ms - started_ms) // 1000} s"
    return about(
        state.where,
        "open transaction",
        f"a transaction of producer {found.producer_id}{name} holds the rest back{age}",
        (state.end, state.high_watermark),
        hint="it is archived as soon as it ends; end a hanging transaction with kafka-transactions.sh abort",
    )


def registry_failed(error: MaxbrodError, before_ms: int | None) -> Notice:
    """The last capture is carried on, and named with its time: nobody must take it for the present."""
    kept = "no capture of it is archived yet"
    if before_ms is not None:
        kept = f"the last capture is of {datetime.fromtimestamp(before_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return Notice(
        kind=REGISTRY,
        message=f"the schema registry was not captured, {kept}: {error}",
        hint=error.hint or "run it again",
        exit_code=EXIT_INCOMPLETE,
    )


def never_still(topic: str) -> Notice:
    """Its log was truncated, or it was deleted, each time the run had planned it again."""
    message = "it was truncated or recreated repeatedly during the run, and was not read to its end"
    return Notice(kind="failed", message=message, topic=topic, hint="run it again", exit_code=EXIT_INCOMPLETE)


def storage_failed(topic: str, failure: Failure) -> Notice:
    return Notice(kind=STORAGE, message=failure.message, topic=topic, hint=failure.hint, exit_code=EXIT_FAILED)


def hidden_topic(name: str, *, exists: bool) -> Notice:
    return Notice(
        kind=HIDDEN,
        message=f"this user may not see the topic{'' if exists else ', if it exists'}: nothing of it is archived",
        topic=name,
        hint="allow this user to Read the topic, which implies Describe; or exclude the topic",
        exit_code=EXIT_INCOMPLETE,
    )


def hidden_topics(gap: MissingState, *, enough: bool) -> Notice:
    """`enough`: the user has said how many topics there are, and as many are."""
    return Notice(
        kind=HIDDEN,
        message=f"topics may be hidden from this user, and missing in the archive: {gap.why}",
        hint=None
        if enough
        else f"{gap.hint}; or name every topic in full; or say with --min-topics how many there are",
        exit_code=EXIT_DONE if enough else EXIT_INCOMPLETE,
    )


def too_few_topics(found: int, wanted: int) -> Notice:
    return Notice(
        kind=HIDDEN,
        message=f"{counted(found, 'topic', 'is', 'are')} there, and --min-topics wants {wanted:,}: they were "
        "deleted, are excluded or misspelt, or this user may not see them",
        hint="allow this user to Read every topic, which implies Describe; or lower --min-topics",
        exit_code=EXIT_INCOMPLETE,
    )


def no_topics(*, any_topic: bool) -> Notice:
    """Said of a cluster of which all topics are known."""
    why = "every topic of the cluster is internal or excluded" if any_topic else "the cluster has no topic"
    return Notice(kind="missing", message=f"there is nothing to back up: {why}")


def is_partial(notices: Iterable[Notice]) -> bool:
    """True if a run cannot know that it has archived every topic that it was to archive."""
    return any(notice.kind == HIDDEN and notice.exit_code for notice in notices)


def not_captured(cluster: ClusterState, told: Iterable[Notice] = ()) -> Iterator[Notice]:
    """The parts that the snapshot lacks, without the hidden topics that `told` has."""
    hidden = {f"{HIDDEN_TOPIC}{notice.topic}" for notice in told if notice.kind == HIDDEN}
    for gap in cluster.gaps:
        # A cluster without an authorizer has no ACLs, so none are missing.
        if (gap.what != "ACLs" or cluster.acls is None) and gap.what not in {HIDDEN_TOPICS, *hidden}:
            yield Notice(kind="not captured", message=f"{gap.what}: {gap.why}", hint=gap.hint)

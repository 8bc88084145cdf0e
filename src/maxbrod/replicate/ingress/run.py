"""Ingress: follows an archive, and appends what it holds to the destination's topics, exactly once.

Each interval: read the newest catalog, make the destination's topics ready, append what their logs lack, follow log
starts and groups, and mark what was done. Nothing is remembered between intervals that the destination does not know:
an ingress that is killed at any point continues from the destination's logs.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

from maxbrod.config import Config
from maxbrod.errors import (
    EXIT_DONE,
    CorruptDataError,
    MaxbrodError,
    NoArchiveError,
    ObjectNotFoundError,
    UnavailableError,
)
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.kept import keeping_clients
from maxbrod.model import now_ms
from maxbrod.replicate.heartbeat import BEAT_EVERY_S, Heartbeats
from maxbrod.replicate.ingress.append_mode import AppendMode
from maxbrod.replicate.ingress.exact_mode import ExactMode
from maxbrod.replicate.ingress.mode import Mode
from maxbrod.replicate.ingress.plan import Mirror, why_other_source
from maxbrod.replicate.ingress.topics import NO_LEADER
from maxbrod.replicate.link import Link, Offsets, State, parse_offsets
from maxbrod.replicate.link_lease import shares_of_link
from maxbrod.replicate.newest import Newest
from maxbrod.replicate.report import IngressReport, standing_by, status_of
from maxbrod.replicate.shares import RENEWALS, Posted, Shares
from maxbrod.replicate.view import LinkView, MirroredPartition, Orders, forgotten_orders, keep_order
from maxbrod.work.intervals import IDLE_S, pause_after, wait_for_news, wait_unless
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.reach import Needs, Place
from maxbrod.work.session import Session
from maxbrod.work.work import Means, Work

_LOG: Final = logging.getLogger(__name__)
_ENDED: Final = frozenset({State.PROMOTED, State.OWN, State.SOURCE_GONE})
_UNTOUCHED: Final = _ENDED | {State.FAULTED}
_QUIET: Final = _ENDED | {State.IN_STEP, State.PAUSED}
_UNSEEN: Final = frozenset({State.UNKNOWN, State.FAULTED})
"""If the log of such a partition is not known, its end is not 0."""
_LOOK_AGAIN_MS: Final = 60_000
"""The interval at which the destination's topics are looked at although the archive has nothing new."""

_BACKOFF_MAX_S: Final = 60.0
_APART_S: Final = 0.02
"""Without an interval, the archive's commits limit how often something is appended."""


class Ingress(Work):
    """One archive, one destination. Use it in a `with`."""

    def __init__(self, config: Config, **means: Unpack[Means]) -> None:
        super().__init__(config, **means)
        self._options = config.replicate
        place = Place(url=config.archive_url, storage=config.storage)
        self._workers = self.workers(Needs(clusters=(config.cluster,), places=(place,), patience_s=config.patience))
        self._client = self._undo.enter_context(KafkaClient(config.cluster, stop=self.stop))
        self._view = LinkView(config, self._client)
        self._shares: Shares | None = None
        self._generation = (0, 0)
        """The division of the partitions among instances, and the term of the lease, that marks were last read in."""
        self._mode: Mode | None = None
        """None: this instance has not begun to work."""
        self._groups_of: str | None = None
        """The run whose groups were carried last."""
        self._groups_at = -math.inf
        """When that was."""
        # Most intervals of a second find none, and listing them costs more than the rest of a quiet interval.
        self._beats = Heartbeats(BEAT_EVERY_S if self._options.every < BEAT_EVERY_S else 0.0)
        self._last: list[MirroredPartition] = []
        self._bytes = 0
        """Archived bytes whose records the last interval has finished to append."""
        self._looked: tuple[Newest, Orders, int] | None = None
        """The archive, the orders and the time of the last interval that looked at everything."""

    def __exit__(self, *_: object) -> None:
        with self._undo:
            if self._shares is not None:
                self._shares.leave()

    @property
    def leader_seen(self) -> Posted | None:
        """The lease as last read. It changes while the instance that leads lives."""
        return None if self._shares is None else self._shares.seen

    def wait_for_news(self, seconds: float) -> bool:
        """True as soon as the archive has a commit that the last interval has not seen; False after this time."""
        return self._view.wait_for_commit(seconds, self.stop)

    def run(self) -> IngressReport:
        """One interval. Errors of single partitions are in the report, those of archive and cluster are raised."""
        started_at_ms = now_ms()
        link = self._view.link()
        if self._shares is None:
            options = self._options
            self._shares = shares_of_link(
                self._view.kafka, link, takeover_s=options.takeover, patience_s=self.config.patience
            )
        shares = self._shares
        shares.look()
        # After the share: whoever had it before has followed this version, or an older one.
        newest = self._view.look()
        # Once, it does all of the work or nothing: no part of it that another instance gives to it.
        if not (shares.leads if self._options.once else shares.any):
            self._forget()  # what it knew may be out of date when it takes over
            return standing_by(link.name, shares.leader, newest.version, started_at_ms, takeovers=shares.takeovers)
        if self._mode is None:
            offsets = parse_offsets(self._options.offsets)
            kind = AppendMode if offsets is Offsets.APPEND else ExactMode
            self._mode = kind(self._view, self._workers, self.on_progress)
        elif (shares.generation, shares.term) != self._generation:
            self._mode.forget()
            self._looked = None
        self._generation = (shares.generation, shares.term)
        orders = self._view.orders()
        if shares.settled and self._is_quiet(newest, orders):
            return self._report(newest, link, self._mode, self._last, started_at_ms)
        return self._work(newest, link, self._mode, orders, shares, started_at_ms)

    def _work(
        self, newest: Newest, link: Link, mode: Mode, orders: Orders, shares: Shares, started_at_ms: int
    ) -> IngressReport:
        topics = mode.topics
        everything = self._view.partitions(newest, orders)
        # The instance that leads makes all topics ready, before it gives partitions of them to others.
        partitions = everything if shares.leads else [each for each in everything if shares.has(each.where)]
        mode.read_marks(everything)
        self._keep_expired(mode, partitions, orders)
        _refuse_others(mode, partitions)
        live = [partition for partition in partitions if partition.state not in _UNTOUCHED]
        mirrors: dict[str, Mirror] = {}
        for each in live:
            found = mirrors.setdefault(each.mirror.name, each.mirror)
            if each.mirror.source.partition_count > found.source.partition_count:
                mirrors[each.mirror.name] = each.mirror
        extents = {each.id: each.extent for each in live}
        adopted = {each.mirror.name for each in live if each.adopted_end is not None}
        failed = topics.prepare(list(mirrors.values()), extents, mode.marks, adopted, lead=shares.leads)
        _tell_failures(failed, mode, live)
        mode.mark_begun(partitions)
        if shares.leads:
            ready = [each.where for each in live if each.mirror.name not in failed]
            shares.divide(topics.leaders(where for where in ready if where not in topics.refused))
            partitions = [each for each in everything if shares.has(each.where)]
        appended, self._bytes = mode.append(newest, partitions, orders, shares.identity)
        mine = self._keep_verdicts(partitions, shares)
        mode.finish(newest, mine)
        leads = shares.leads and len(mine) == len(partitions)
        groups = self._carry_groups(newest, mode, everything, shares) if leads else 0
        self._last, self._looked = partitions, (newest, orders, started_at_ms)
        return self._report(newest, link, mode, partitions, started_at_ms, appended=appended, groups=groups)

    def _keep_verdicts(self, partitions: Sequence[MirroredPartition], shares: Shares) -> list[MirroredPartition]:
        """The partitions that are still this instance's. Of the others it knows nothing, and marks nothing.

        If it was suspended, brokers have refused what it sent, or its owner has appended meanwhile: neither is a fault.
        """
        kept = shares.keeps(partition.where for partition in partitions)
        for partition in partitions:
            if partition.where not in kept:
                partition.state, partition.why = State.CATCHING_UP, "another instance works on it now"
                self._forget()
        return [partition for partition in partitions if partition.where in kept]

    def _forget(self) -> None:
        """Begin anew when there is something to do: others have worked meanwhile, and may have found no fault."""
        self._mode = self._groups_of = self._looked = None

    def _keep_expired(self, mode: Mode, partitions: Sequence[MirroredPartition], orders: Orders) -> None:
        """Keep orders that brokers have forgotten: the marks, which are renewed, still contain them.

        A topic that was promoted belongs to its producers for ever. When a topic is deleted, its marks go with it.
        """
        kept = forgotten_orders(partitions, orders, mode.marks)
        topics = sorted({each.where.topic for each in kept})
        present = self._client.metadata(topics, deadline=self._view.deadline()).topics if kept else {}
        for each in kept:
            if each.where.topic in present:
                keep_order(each, mode.marks[each.key])
            else:
                del mode.marks[each.key]

    def _is_quiet(self, newest: Newest, orders: Orders) -> bool:
        """True if nothing has changed since the last interval, and nothing was left to do."""
        if self._looked is None or not all(each.state in _QUIET for each in self._last):
            return False
        if (
            self._options.groups
            and self._groups_of != newest.run_id
            and self._shares is not None
            and self._shares.leads
        ):
            return False  # a group waits
        before, given, looked_ms = self._looked
        return before is newest and given == orders and now_ms() - looked_ms < _LOOK_AGAIN_MS

    def _report(
        self,
        newest: Newest,
        link: Link,
        mode: Mode,
        partitions: Sequence[MirroredPartition],
        started_at_ms: int,
        *,
        appended: int = 0,
        groups: int = 0,
    ) -> IngressReport:
        beats = self._beats.read(newest.archive.storage)
        ends = mode.ends(partitions)
        return IngressReport(
            link=link.name,
            started_at_ms=started_at_ms,
            finished_at_ms=now_ms(),
            version=newest.version,
            partitions=tuple(
                status_of(
                    partition, ends.get(partition.key, None if partition.state in _UNSEEN else 0), beats, now_ms()
                )
                for partition in partitions
            ),
            appended=appended,
            groups=groups,
            appended_bytes=self._bytes if appended else 0,
            heartbeat_ms=beats[0].at_ms if beats else None,
            leads=self._shares is not None and self._shares.leads,
            takeovers=0 if self._shares is None else self._shares.takeovers,
            unmatched=self._view.unmatched,
        )

    def _carry_groups(self, newest: Newest, mode: Mode, partitions: Iterable[MirroredPartition], shares: Shares) -> int:
        """Carry groups once for each snapshot, and again as long as a group waits for records that it has processed.

        Egress records groups once a second at most, however often it commits.
        """
        if not self._options.groups or self._groups_of == newest.run_id:
            return 0
        if self._options.every < IDLE_S and time.monotonic() - self._groups_at < IDLE_S:
            return 0
        self._groups_at = time.monotonic()
        live = [
            partition
            for partition in partitions
            if partition.state in {State.IN_STEP, State.CATCHING_UP, State.LATE_SEGMENT}
        ]
        others = [each for each in live if not shares.has(each.where)]
        carried, settled = 0, False
        try:
            carried, settled = mode.carry_groups(newest, live, others)
        except UnavailableError as error:
            _LOG.warning("%s; the next interval tries again", error)  # records do not depend on it
        self._groups_of = newest.run_id if settled and all(each.state is State.IN_STEP for each in live) else None
        return carried


def _refuse_others(mode: Mode, partitions: Iterable[MirroredPartition]) -> None:
    """A link that has appended to a topic cannot mirror it, nor the other way round."""
    for partition in partitions:
        mark = mode.marks.get(partition.key)
        if mark is not None and partition.state is State.PROMOTED:
            # It stays as it is, but its lag behind another topic means nothing.
            partition.why = partition.why or why_other_source(mark, partition.id, mark.next_offset)
        elif mark is not None and mark.offsets is not mode.offsets and partition.state not in _ENDED:
            partition.state = State.FAULTED
            partition.why = f"this link has written it with --offsets {mark.offsets}; name another --link"


def _tell_failures(failed: Mapping[str, MaxbrodError], mode: Mode, partitions: Iterable[MirroredPartition]) -> None:
    topics, exact = mode.topics, mode.offsets is Offsets.EXACT
    for partition in partitions:
        if (error := failed.get(partition.mirror.name) or topics.refused.get(partition.where)) is not None:
            partition.state, partition.why = State.CATCHING_UP if error.retryable else State.FAULTED, str(error)
        elif exact and partition.state is State.IN_STEP and partition.where not in topics.extents:
            partition.state, partition.why = State.UNKNOWN, NO_LEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressInterval:
    """One interval: its report, or the error that it failed with."""

    number: int
    report: IngressReport | None
    error: MaxbrodError | None
    failures: int

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return self.error.exit_code
        return EXIT_DONE if self.report is None else self.report.exit_code

    def as_dict(self) -> dict[str, Any]:
        return {
            "interval": self.number,
            "exit_code": self.exit_code,
            "failures": self.failures,
            "report": None if self.report is None else self.report.as_dict(),
            "error": None if self.error is None else self.error.as_dict(),
        }


def follow_archive(
    config: Config,
    *,
    stop: threading.Event,
    on_interval: Callable[[IngressInterval], None],
    on_progress: OnProgress = silent,
    session: Session | None = None,
) -> IngressInterval:
    """Run until `stop` is set, and return the last interval. Errors that a retry cannot fix are raised."""
    last: IngressInterval | None = None
    options, seen = config.replicate, None
    with keeping_clients(), Ingress(config, session=session, on_progress=on_progress, stop=stop) as ingress:
        while True:
            began = time.monotonic()
            report, error = None, None
            try:
                report = ingress.run()
            except MaxbrodError as failure:
                if not may_come(failure, once=options.once):
                    raise
                error = failure
            stands_by = report is not None and report.standby_for is not None
            if options.once and stands_by and seen in {None, ingress.leader_seen}:
                # Whoever leads may have been killed: it is lost after a while, and nobody else may be there to notice.
                seen = ingress.leader_seen
                if wait_unless(min(options.every or IDLE_S, options.takeover / RENEWALS), stop):
                    continue
            failures = 0 if error is None else 1 + (0 if last is None else last.failures)
            number = 1 if last is None else last.number + 1
            last = IngressInterval(number=number, report=report, error=error, failures=failures)
            on_interval(last)
            if options.once:
                return last
            if options.every or failures:
                pause_s = options.every - (time.monotonic() - began)
                going_on = wait_unless(max(pause_s, pause_after(failures, options.every, _BACKOFF_MAX_S)), stop)
            else:
                going_on = wait_for_news(ingress.wait_for_news, stop, began=began, apart_s=_APART_S)
            if not going_on:
                return last


def may_come(failure: MaxbrodError, *, once: bool) -> bool:
    """While a bucket is copied here, parts of the catalog, or all of it, may be missing or cut off for a while."""
    if isinstance(failure, NoArchiveError):
        return not once
    return failure.retryable or isinstance(failure, (CorruptDataError, ObjectNotFoundError))

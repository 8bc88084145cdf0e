"""Egress: a continuous backup of the source, divided among instances, and a heartbeat after each interval."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, Self

from maxbrod.archive.selection import select_topics
from maxbrod.backup.commits import Part
from maxbrod.backup.follow import Interval, follow, open_backup
from maxbrod.backup.generations import policy_of
from maxbrod.backup.observation import choose_topics
from maxbrod.backup.plan.ranges import RollLimits, RollSchedule
from maxbrod.catalog.catalog import open_writable
from maxbrod.config import Config
from maxbrod.errors import MaxbrodError, UnavailableError, UsageError
from maxbrod.kafka.fetch.offsets import log_ends
from maxbrod.kafka.state.topics import see_topics
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import PartitionId, TopicPartition, now_ms, topic_id_text
from maxbrod.option_values import parse_bytes, parse_seconds
from maxbrod.replicate.archive_lease import ArchiveLease, ArchiveMembers
from maxbrod.replicate.heartbeat import BEAT_EVERY_S, Heartbeat, write_heartbeat
from maxbrod.replicate.options import EgressOptions, EgressTreeOptions, ReplicateOptions
from maxbrod.replicate.shares import RENEWALS, Posted, Shares
from maxbrod.storage.stores import open_storage
from maxbrod.work.intervals import IDLE_S, wait_unless
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.session import Session

_FORM: Final = "give TOPIC:records=N,bytes=SIZE,age=TIME, or some of the three"


def follow_source(
    config: Config,
    *,
    stop: threading.Event,
    on_interval: Callable[[Interval], None],
    on_beat: Callable[[MaxbrodError | None], None] = lambda _: None,
    on_share: Callable[[EgressShare], None] = lambda _: None,
    on_progress: OnProgress = silent,
    session: Session | None = None,
) -> Interval:
    """Back up until `stop` is set, with a heartbeat after each interval that reached the cluster.

    Several instances divide the partitions among themselves. `on_share` is told before each interval what this one has,
    also if it has nothing and stands by. `on_beat` gets the error of a heartbeat that failed: the next interval writes
    another one.
    """
    config = backup_config(config)
    options, limits = config.replicate, limits_of(config.replicate)  # a wrong one is refused before anything is written
    if options.takeover <= 0:
        raise UsageError("--takeover must be above 0: an instance that works would be taken for lost at once")
    last = _idle()
    with KafkaClient(config.cluster, stop=stop) as client, ExitStack() as undo:
        sharing = None
        # With one writer the user promises what the store cannot keep; other tools' archives have no place for a lease.
        if not config.backup.single_writer and config.layout in {None, "kafka"}:
            sharing = undo.enter_context(_Sharing(config, client, on_share))
        while sharing is None or _wait_for_share(sharing, stop, options):
            if options.once:
                # A topic that is named may come later, but not in the only interval.
                choose_topics(client, config.backup, patience_s=config.patience, demand=True)
            after = _beating(config, client, sharing, stop, on_beat, on_interval)
            ending = stop if sharing is None else _Either(stop, sharing.without)
            take_part = None if sharing is None else sharing.take_part
            waiting = RollSchedule(*limits) if options.topic_limits else None
            opened = open_backup(config, session=session, on_progress=on_progress, stop=ending, take_part=take_part)
            last = follow(
                config, stop=ending, on_interval=after, on_progress=on_progress, opened=opened, waiting=waiting
            )
            if sharing is None or stop.is_set():
                break
    return last


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressShare:
    """The share of one instance, as it knows it before an interval."""

    leads: bool
    leader: str | None
    """The instance that leads, if it is another one."""
    any: bool
    """True if it has anything to do; otherwise it stands by."""
    takeovers: int
    """The number of instances that it has known to be lost, whose partitions were given to others."""


class _Either(threading.Event):
    """Set if another event is set, or this one."""

    def __init__(self, *others: threading.Event) -> None:
        super().__init__()
        self._others = others

    def is_set(self) -> bool:
        return super().is_set() or any(other.is_set() for other in self._others)


class _Sharing:
    """The share of this instance, taken anew before each run."""

    def __init__(self, config: Config, client: KafkaClient, on_share: Callable[[EgressShare], None]) -> None:
        self._config, self._client, self._on_share = config, client, on_share
        takeover_s = config.replicate.takeover

        def reach_source() -> None:
            client.metadata([], deadline=Deadline.after(config.patience))

        # It is created here, so that an instance which takes over can raise its fence. A source that does not answer
        # leaves no archive behind.
        storage, _ = open_writable(config.archive_url, config.storage, before_creating=reach_source)
        lease = ArchiveLease(storage, takeover_s=takeover_s, raise_fence=self._raise_fence)
        self._members = ArchiveMembers(storage, lease.instance, takeover_s=takeover_s)
        self.shares = Shares(lease, self._members, takeover_s=takeover_s)
        self.without = threading.Event()
        """Set while this instance has nothing to do."""
        # A generation of a compacted topic is of all its partitions: one instance reads them.
        self._divisible = policy_of(config.backup) is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shares.leave()

    def look(self) -> bool:
        """True if this instance has anything to do now."""
        shares = self.shares
        shares.look()
        if shares.leads:
            # The one that is alone has everything, and does not have to ask what that is.
            alone = shares.whole and (shares.instances == 1 or not self._divisible)
            shares.divide({} if alone else self._leaders(), alone=not self._divisible)
            if lost := self._members.lost():
                self._members.forget(lost)
        (self.without.clear if shares.any else self.without.set)()
        told = EgressShare(leads=shares.leads, leader=shares.leader, any=shares.any, takeovers=shares.takeovers)
        self._on_share(told)
        return shares.any

    def take_part(self) -> Part:
        if not self.look():
            raise UnavailableError("this instance has got nothing to archive", operation="replicate")
        shares = self.shares
        return Part(
            claim=shares.claim,
            has=shares.has,
            generation=(shares.generation, shares.leads),
            leads=shares.leads,
            whole=shares.whole,
            claim_again=shares.claim_again,
        )

    def _leaders(self) -> dict[TopicPartition, int]:
        """The broker that leads each of the chosen partitions; -1: none does now."""
        request = self._config.backup
        chosen = choose_topics(self._client, request, patience_s=self._config.patience, demand=False)
        return {
            TopicPartition(topic=name, partition=number): -1 if each.leader is None else each.leader
            for name, topic in chosen.topics.items()
            for number, each in topic.partitions.items()
        }

    def _raise_fence(self, fence: int) -> None:
        _, catalog = open_writable(self._config.archive_url, self._config.storage)
        catalog.raise_fence(fence)


def _wait_for_share(sharing: _Sharing, stop: threading.Event, options: ReplicateOptions) -> bool:
    """Wait until this instance has something to do. False: `stop` was set.

    UnavailableError: with `once`, another instance leads, and is seen to live. If it was killed, this one waits until
    it is lost: nobody else may be there to take over.
    """
    seen: Posted | None = None
    while not stop.is_set():
        lives = False
        try:
            if sharing.look() and (sharing.shares.leads or not options.once):
                return True
            lives, seen = seen not in {None, sharing.shares.seen}, sharing.shares.seen
        except UnavailableError:
            if seen is None:
                raise  # later, one that stands by waits until the store or the cluster answers again
        if options.once and lives:
            raise UnavailableError(
                f"another instance archives here: {sharing.shares.leader}",
                operation="replicate",
                hint="leave --once out to share the work with it",
            )
        wait_unless(min(options.every or IDLE_S, options.takeover / RENEWALS), stop)
    return False


def _beating(
    config: Config,
    client: KafkaClient,
    sharing: _Sharing | None,
    stop: threading.Event,
    on_beat: Callable[[MaxbrodError | None], None],
    on_interval: Callable[[Interval], None],
) -> Callable[[Interval], None]:
    """Return what to call after each interval: the instance that leads writes a heartbeat, if one is due."""
    beat_ms = 0

    def after(interval: Interval) -> None:
        nonlocal beat_ms
        if sharing is not None and sharing.without.is_set():
            return  # it has given everything to others
        leads = sharing is None or sharing.shares.leads
        if leads and interval.error is None and now_ms() - beat_ms >= BEAT_EVERY_S * 1000:
            try:
                beat(config, client)
            except MaxbrodError as error:
                on_beat(error)
            else:
                beat_ms = now_ms()
                on_beat(None)
        on_interval(interval)
        if config.replicate.once:
            stop.set()

    return after


def _idle() -> Interval:
    """Return the interval of a command that was stopped while it stood by."""
    return Interval(
        number=0,
        started_at_ms=now_ms(),
        finished_at_ms=now_ms(),
        report=None,
        error=None,
        recovery_point_ms=None,
        failures=0,
    )


def backup_config(config: Config) -> Config:
    """The configuration of the backup that egress is: the options of `replicate` stand above those of `backup`."""
    options = config.replicate
    backup = replace(
        config.backup,
        topics=options.topics or config.backup.topics,
        exclude=options.exclude or config.backup.exclude,
        min_topics=options.min_topics or config.backup.min_topics,
        follow=True,
        every=options.every,
        roll_bytes=options.roll_bytes if options.roll_age else None,
        roll_records=options.roll_records if options.roll_age else None,
        roll_age=options.roll_age,
    )
    return config.model_copy(update={"backup": backup})


def beat(config: Config, client: KafkaClient) -> Heartbeat:
    """Write a heartbeat of the source's present state into the archive."""
    found = source_ends(client, config.backup.topics, config.backup.exclude, patience_s=config.patience)
    write_heartbeat(open_storage(config.archive_url, config.storage), found)
    return found


def source_ends(client: KafkaClient, include: Sequence[str], exclude: Sequence[str], *, patience_s: float) -> Heartbeat:
    at_ms = now_ms()
    seen = see_topics(client, None, deadline=Deadline.after(patience_s)).topics
    chosen = select_topics({name: each.internal for name, each in seen.items()}, include, exclude).chosen
    partitions = {
        TopicPartition(topic=name, partition=number): PartitionId(
            topic_id=topic_id_text(seen[name].topic_id), partition=number
        )
        for name in chosen
        for number in seen[name].partitions
    }
    ends = log_ends(client, list(partitions), deadline=Deadline.after(patience_s)) if partitions else {}
    cluster_id = client.metadata([], deadline=Deadline.after(patience_s)).cluster_id or ""
    return Heartbeat(
        at_ms=at_ms,
        instance=f"{socket.gethostname()}-{os.getpid()}",
        cluster_id=cluster_id,
        ends={partitions[where]: end for where, end in ends.items()},
    )


def limits_of(options: EgressOptions | EgressTreeOptions) -> tuple[RollLimits, Mapping[str, RollLimits]]:
    """The limits of all topics, and of those that are named. UsageError: one is wrong, or a topic is named twice."""
    common = RollLimits(bytes=options.roll_bytes, records=options.roll_records, age_ms=round(options.roll_age * 1000))
    found: dict[str, RollLimits] = {}
    for word in options.topic_limits:
        topic, colon, given = word.partition(":")
        if not (topic and colon and given):
            raise UsageError(f"{word!r} is not the limit of a topic", hint=_FORM)
        if topic in found:
            raise UsageError(f"the topic {topic} has limits twice", hint="give them at once, with commas")
        found[topic] = _with(common, word, given)
    return common, found


def _with(limits: RollLimits, word: str, given: str) -> RollLimits:
    for part in given.split(","):
        name, _, value = part.partition("=")
        try:
            match name:
                case "records":
                    limits = replace(limits, records=_positive(int(value)))
                case "bytes":
                    limits = replace(limits, bytes=_positive(int(str(parse_bytes(value)))))
                case "age":
                    # 0: at every interval, as for all topics.
                    limits = replace(limits, age_ms=round(float(str(parse_seconds(value))) * 1000))
                case _:
                    raise ValueError(f"there is no limit {name!r}")
        except ValueError as error:
            raise UsageError(f"{word!r} is not the limit of a topic: {error}", hint=_FORM) from error
    return limits


def _positive(value: int) -> int:
    if value < 1:
        raise ValueError("a limit must be above 0")
    return value

"""Egress: a continuous backup of the source, and a heartbeat after each interval."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from maxbrod.archive.selection import select_topics
from maxbrod.backup.follow import Interval, follow
from maxbrod.catalog.opening import open_writable
from maxbrod.engine.progress import silent
from maxbrod.errors import MaxbrodError, UnavailableError, UsageError
from maxbrod.kafka.fetch.log_ends import log_ends
from maxbrod.kafka.state.topics import see_topics
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import PartitionId, TopicPartition, now_ms, topic_id_text
from maxbrod.replicate.archive_lease import ArchiveLease
from maxbrod.replicate.heartbeat import Heartbeat, write_heartbeat
from maxbrod.replicate.lease import RENEWALS
from maxbrod.replicate.view import places_of
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maxbrod.config import Config
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session
    from maxbrod.replicate.options import ReplicateOptions

_BEAT_EVERY_MS: Final = 5_000
"""With a shorter interval not every one gets a heartbeat."""
_POLL_S: Final = 0.2


def follow_source(
    config: Config,
    *,
    stop: threading.Event,
    on_interval: Callable[[Interval], None],
    on_beat: Callable[[MaxbrodError | None], None] = lambda _: None,
    on_standby: Callable[[str], None] = lambda _: None,
    on_progress: OnProgress = silent,
    session: Session | None = None,
) -> Interval:
    """Back up until `stop` is set, with a heartbeat after each interval that reached the cluster.

    `on_beat` gets the error of a heartbeat that failed: the next interval writes another one. While another instance
    works, `on_standby` gets its name, again and again.
    """
    config = backup_config(config)
    if config.replicate.takeover <= 0:
        raise UsageError("--takeover must be above 0: an instance that works would be taken for lost at once")
    # With one writer the user promises what the store cannot keep; archives of other tools have no place for a lease.
    if config.backup.single_writer or config.layout not in {None, "kafka"}:
        return _follow(config, stop, stop, on_interval, on_beat, on_progress, session)
    storage, _ = open_writable(places_of(config)[1], config.storage)
    lease = ArchiveLease(storage, takeover_s=config.replicate.takeover)
    last = _idle()
    try:
        while _hold(lease, stop, on_standby, config.replicate):
            ending = threading.Event()
            with lease.kept(stop, ending):
                try:
                    last = _follow(config, stop, ending, on_interval, on_beat, on_progress, session)
                except MaxbrodError:
                    if lease.held:
                        raise
                    # Another instance works, and the archive has refused what this one had read before.
            if stop.is_set():
                break
    finally:
        with suppress(MaxbrodError):  # then it runs out
            lease.release()
    return last


def _hold(
    lease: ArchiveLease, stop: threading.Event, on_standby: Callable[[str], None], options: ReplicateOptions
) -> bool:
    """Wait until this instance holds the lease. False: `stop` was set. UnavailableError: it would wait, once."""
    while not stop.is_set():
        if lease.hold():
            return True
        if options.once:
            raise UnavailableError(
                f"another instance archives here: {lease.holder}",
                operation="replicate",
                hint="leave --once out to stand by for it",
            )
        on_standby(lease.holder or "another instance")
        until = time.monotonic() + min(options.every, options.takeover / RENEWALS)
        while not stop.is_set() and time.monotonic() < until:
            time.sleep(_POLL_S)
    return False


def _idle() -> Interval:
    """What a command reports that was stopped while it stood by."""
    return Interval(
        number=0,
        started_at_ms=now_ms(),
        finished_at_ms=now_ms(),
        report=None,
        error=None,
        recovery_point_ms=None,
        failures=0,
    )


def _follow(
    config: Config,
    stop: threading.Event,
    ending: threading.Event,
    on_interval: Callable[[Interval], None],
    on_beat: Callable[[MaxbrodError | None], None],
    on_progress: OnProgress,
    session: Session | None,
) -> Interval:
    with KafkaClient(places_of(config)[0]) as client:
        beat_ms = 0

        def after(interval: Interval) -> None:
            nonlocal beat_ms
            if interval.error is None and now_ms() - beat_ms >= _BEAT_EVERY_MS:
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
                ending.set()

        return follow(config, stop=ending, on_interval=after, on_progress=on_progress, session=session)


def backup_config(config: Config) -> Config:
    """The configuration of the backup that egress is: the options of `replicate` stand above those of `backup`."""
    options = config.replicate
    backup = replace(
        config.backup,
        topics=options.topics or config.backup.topics,
        exclude=options.exclude or config.backup.exclude,
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
    write_heartbeat(open_storage(places_of(config)[1], config.storage), found)
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

"""Mounts archives: opens them, listens, and serves until it is stopped."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.archive.archive import open_archive
from maxbrod.archive.renames import parse_rename
from maxbrod.archive.selection import parse_time_ms, select_names
from maxbrod.cli.metrics import exporting
from maxbrod.errors import MaxbrodError, RefusedError, UsageError
from maxbrod.model import now_ms
from maxbrod.mount.broker import BrokerNode, Door, listen
from maxbrod.mount.cache import ChunkCache
from maxbrod.mount.coordinator import Coordinator
from maxbrod.mount.journal import CommitJournal, default_state
from maxbrod.mount.loads import ChunkLoader
from maxbrod.mount.metrics import registry_of
from maxbrod.mount.positions import GroupTopic, Positions, archived_positions
from maxbrod.mount.renewal import Renewal
from maxbrod.mount.report import MountReport
from maxbrod.mount.security import Logins, TlsFiles, ssl_context
from maxbrod.mount.tokens import TokenRules
from maxbrod.mount.users import read_users
from maxbrod.mount.view import (
    ClusterView,
    MountedArchive,
    OffsetRanges,
    ServedNode,
    identity,
    node_id,
    view_of,
)

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.mount.options import MountOptions
    from maxbrod.work.work import Work

_THREADS: Final = 16
_BEAT_S: Final = 10.0
_EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - it is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """What a client must know, and a person wants to."""

    bootstrap: str
    archives: tuple[str, ...]
    topics: int
    partitions: int
    state: Path


def mount(work: Work, on_ready: Callable[[Mounted], None] = lambda _: None) -> MountReport:
    """Serve archives until `work` is stopped. `on_ready` is called when clients can connect."""
    config, options = work.config, work.config.mount
    door = door_of(options)
    work.tell("opening the archive")
    archives = open_archives(config)
    names = tuple(archive.archive.url for archive in archives)
    with ExitStack() as undo:
        listener = undo.enter_context(listen(options.listen))
        loader = ChunkLoader(ChunkCache(options.cache_bytes), threads=_THREADS)
        undo.callback(loader.close)
        journal = CommitJournal.open(options.state or default_state(names), names)
        cluster_id = identity([journal.mount_id, options.as_of or "", options.until or ""])
        choose = partial(choose_topics, options, cluster_id)
        view = choose(archives)
        if options.warm:
            select_names(view.topics, options.warm)  # a mistake is told before anybody is served
        host, port = options.advertise or listener.getsockname()[0], listener.getsockname()[1]
        view.nodes = (ServedNode(node_id=node_id(0), host=host, port=port),)
        mounted = Mounted(
            bootstrap=f"{host}:{port}",
            archives=names,
            topics=len(view.topics),
            partitions=sum(topic.partition_count for topic in view.topics.values()),
            state=journal.folder,
        )
        renewal = Renewal(view, archives, partial(open_one, config), choose)
        node = partial(
            BrokerNode,
            view,
            loader,
            node_id(0),
            door=door,
            with_ids=options.topic_ids,
            connections_max=options.connections_max,
        )
        serving = _serve(view, node, journal, renewal, listener=listener, work=work, ready=lambda: on_ready(mounted))
        broker = asyncio.run(serving)
    return MountReport(
        archives=names,
        bootstrap=mounted.bootstrap,
        cluster_id=view.cluster_id,
        topics=mounted.topics,
        partitions=mounted.partitions,
        requests=sum(broker.requests.values()),
        bytes=broker.fetcher.bytes,
        started_at_ms=work.started_at_ms,
        finished_at_ms=now_ms(),
    )


def open_archives(config: Config) -> list[MountedArchive]:
    """Open the archives, at one version each."""
    return [open_one(config, number) for number in range(len(_urls(config)))]


def open_one(config: Config, number: int, held: MountedArchive | None = None) -> MountedArchive:
    """Open an archive by its number. `held`: an older version, whose logs must not grow."""
    options = config.mount
    until_ms = None if options.until is None else parse_time_ms(options.until)
    archive = open_archive(_urls(config)[number], config.storage, layout=config.layout)
    return MountedArchive(number, archive, as_of=options.as_of, until_ms=until_ms, held=held)


def _urls(config: Config) -> Sequence[str]:
    return config.mount.archives or (config.archive_url,)


def choose_topics(options: MountOptions, cluster_id: str, archives: Sequence[MountedArchive]) -> ClusterView:
    """The cluster that the options ask for."""
    return view_of(
        archives,
        cluster_id=cluster_id,
        include=options.topics,
        exclude=options.exclude,
        rename=parse_rename(options.rename, prefix=options.prefix),
        with_ids=options.topic_ids,
    )


def positions_in(view: ClusterView) -> Positions:
    """Where the archives' groups stand in the topics of the view."""
    topics = [
        GroupTopic(
            name=topic.name,
            source=topic.source,
            topic_id=topic.topic_id,
            archive=topic.archive.archive.url,
            logs=OffsetRanges(topic),
            newest=topic.newest,
        )
        for topic in view.topics.values()
    ]
    archives = {topic.archive.archive.url: topic.archive for topic in view.topics.values()}
    groups = {
        url: () if archive.moment.cluster is None else archive.moment.cluster.groups
        for url, archive in archives.items()
    }
    return archived_positions(topics, groups)


async def _serve(
    view: ClusterView,
    node: Callable[..., BrokerNode],
    journal: CommitJournal,
    renewal: Renewal,
    *,
    listener: socket.socket,
    work: Work,
    ready: Callable[[], None],
) -> BrokerNode:
    options = work.config.mount
    coordinator = Coordinator(positions=positions_in(view), journal=journal)
    broker = node(coordinator=coordinator)

    def on_change() -> None:
        coordinator.offsets.positions = positions_in(view)
        broker.changed()

    renewal.on_change = on_change
    broker.loader.on_lost = renewal.lost
    stopped = asyncio.Event()
    with exporting(registry_of(broker), options, every_s=_BEAT_S) as alive:
        tasks = [asyncio.create_task(_watch(work.stop, stopped, alive))]
        if options.follow:
            tasks.append(asyncio.create_task(renewal.follow(options.every)))
        if options.warm:
            tasks.append(asyncio.create_task(warm(broker.loader, view, options.warm)))
        try:
            ready()
            await broker.serve(listener, stopped)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            coordinator.close()
            await journal.close()
    return broker


async def warm(loader: ChunkLoader, view: ClusterView, patterns: Sequence[str]) -> None:
    """Load the first chunk of each partition of some topics, a few at a time."""
    for name in sorted(select_names(view.topics, patterns)):
        logs = await loader.load_topic(view.topics[name])
        for log in logs.values():
            with suppress(MaxbrodError):
                await loader.chunk_at(log, log.start, None)


async def _watch(stop: threading.Event, stopped: asyncio.Event, alive: Callable[[str | None], None]) -> None:
    """Wait for a signal, which sets an event of threads; and tell that the loop turns."""
    while not stop.is_set():
        alive(None)
        await asyncio.to_thread(stop.wait, _BEAT_S)
    alive("the mount is stopping")
    stopped.set()


def door_of(options: MountOptions) -> Door:
    """How clients come in. RefusedError: strangers could read the archive from another machine."""
    if options.tls_cert is None and (options.tls_key or options.tls_client_ca):
        raise UsageError("--tls-key and --tls-client-ca need --tls-cert", hint="see 'maxbrod mount --help'")
    if options.token_keys is None and (options.token_audience or options.token_issuer):
        raise UsageError("--token-audience and --token-issuer need --token-keys", hint="see 'maxbrod mount --help'")
    context = None
    if options.tls_cert is not None:
        files = TlsFiles(certificate=options.tls_cert, key=options.tls_key, client_ca=options.tls_client_ca)
        context = ssl_context(files)
    tokens = None
    if options.token_keys is not None:
        tokens = TokenRules(keys_file=options.token_keys, audience=options.token_audience, issuer=options.token_issuer)
    host = options.listen.rpartition(":")[0]
    if host == _EVERY_ADDRESS and options.advertise is None:
        raise UsageError(
            f"{host} is no address that a client could connect to", hint="say with --advertise which one it should use"
        )
    loopback = _is_loopback(host)
    logins = Logins(
        users=None if options.users is None else read_users(options.users),
        tokens=tokens,
        plain=context is not None or loopback,
        lifetime_ms=int(options.login_lifetime * 1000),
    )
    # TLS alone hides what is read from others, and lets everybody read.
    if not loopback and options.tls_client_ca is None and not logins.mechanisms:
        raise RefusedError(
            f"everybody who reaches {host} could read the archive",
            object_name=options.listen,
            hint="listen on 127.0.0.1, or let clients identify themselves: --users, --token-keys or --tls-client-ca",
        )
    if not loopback and tokens is not None and context is None:
        raise RefusedError(
            "whoever reads the network could take tokens from it",
            object_name=options.listen,
            hint="encrypt connections with --tls-cert",
        )
    return Door(context=context, logins=logins)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True  # `listen` says what is wrong

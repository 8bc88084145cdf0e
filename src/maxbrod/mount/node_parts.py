"""What every process of a mount does: opens the archives, chooses topics, and serves them as one node."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from maxbrod.archive.archive import open_archive
from maxbrod.archive.renames import parse_rename
from maxbrod.archive.selection import parse_time_ms, select_names
from maxbrod.errors import MaxbrodError, RefusedError, UsageError
from maxbrod.mount.broker import BrokerNode, Door
from maxbrod.mount.cache import ChunkCache
from maxbrod.mount.heap import collector_paused
from maxbrod.mount.loads import ChunkLoader
from maxbrod.mount.ranges import Ranges
from maxbrod.mount.renewal import Renewal
from maxbrod.mount.security import Logins, TlsFiles, ssl_context
from maxbrod.mount.tokens import TokenRules
from maxbrod.mount.users import read_users
from maxbrod.mount.view import ClusterView, MountedArchive, view_of

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.mount.options import MountOptions

_THREADS: Final = 16
_EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - it is refused
_OWN_FILES: Final = 256
"""Open files that are not connections: objects of the archive, the journal, libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What a node is made of."""

    view: ClusterView
    loader: ChunkLoader
    renewal: Renewal
    node: Callable[..., BrokerNode]
    """Makes the node, from its id and its coordinator."""

    @classmethod
    def of(cls, config: Config, archives: list[MountedArchive], cluster_id: str, *, door: Door, share: int = 1) -> Self:
        """`share`: the number of processes that share the memory."""
        options = config.mount
        loader = ChunkLoader(ChunkCache(max(options.cache_bytes // share, 1)), threads=_THREADS)
        choose = partial(choose_topics, options, cluster_id)
        view = choose(archives)
        node = partial(
            BrokerNode,
            view,
            loader,
            door=door,
            with_ids=options.topic_ids,
            connections_max=min(options.connections_max, connections_possible()),
        )
        return cls(
            view=view, loader=loader, renewal=Renewal(view, archives, partial(open_one, config), choose), node=node
        )


async def run_node(
    parts: NodeParts, node: BrokerNode, listener: socket.socket, stopped: asyncio.Event, options: MountOptions
) -> None:
    """Serve until `stopped`; follow the archives and load topics ahead as the options say."""
    node.loader.on_lost = parts.renewal.lost
    tasks = []
    if options.follow:
        tasks.append(asyncio.create_task(parts.renewal.follow(options.every)))
    if options.warm:
        tasks.append(asyncio.create_task(warm(node, parts.view, options.warm)))
    try:
        await node.serve(listener, stopped)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def warm(node: BrokerNode, view: ClusterView, patterns: Sequence[str]) -> None:
    """Load the first chunk of each partition of some topics that this node serves, one after the other."""
    for name in sorted(select_names(view.topics, patterns)):
        with suppress(MaxbrodError):
            logs = await node.loader.load_topic(view.topics[name])
            for number, log in logs.items():
                if view.leader(name, number).node_id == node.node_id:
                    with suppress(MaxbrodError):
                        await node.loader.chunk_at(log, log.start, None)


def open_archives(config: Config, held: Sequence[Ranges] | None = None) -> list[MountedArchive]:
    """Open the archives, at one version each. `held`: the logs of each must not be longer."""
    numbers = range(len(archive_urls(config)))
    with collector_paused():
        return [open_one(config, number, None if held is None else held[number]) for number in numbers]


def open_one(config: Config, number: int, held: Ranges | None = None) -> MountedArchive:
    """Open an archive by its number. `held`: its logs must not be longer than in an older version."""
    options = config.mount
    until_ms = None if options.until is None else parse_time_ms(options.until)
    archive = open_archive(archive_urls(config)[number], config.storage, layout=config.layout, records=True)
    return MountedArchive(number, archive, as_of=options.as_of, until_ms=until_ms, held=held)


def archive_urls(config: Config) -> Sequence[str]:
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


def connections_possible() -> int:
    """How many connections this process can have open beside its own files. Raises its limit as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return 1 << 30 if soft == resource.RLIM_INFINITY else max(soft - _OWN_FILES, 1)


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

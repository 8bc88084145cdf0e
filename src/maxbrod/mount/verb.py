"""Mounts archives: opens them, listens, and serves until it is stopped."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.archive.selection import select_names
from maxbrod.cli.metrics import exporting
from maxbrod.errors import UsageError
from maxbrod.model import now_ms
from maxbrod.mount.broker import listen
from maxbrod.mount.coordinator import Coordinator
from maxbrod.mount.heap import collector_paused
from maxbrod.mount.journal import CommitJournal, default_state
from maxbrod.mount.metrics import NodeFigures, registry_of
from maxbrod.mount.node_parts import NodeParts, door_of, open_archives, run_node
from maxbrod.mount.node_process import NodeOrder
from maxbrod.mount.positions import GroupTopic, Positions, archived_positions
from maxbrod.mount.report import MountReport
from maxbrod.mount.side_nodes import SideNode
from maxbrod.mount.view import NIL, ClusterView, OffsetRanges, ServedNode, identity, node_id

if TYPE_CHECKING:
    from maxbrod.work.work import Work

_BEAT_S: Final = 10.0
_PORT_MAX: Final = 65_535


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
        journal = CommitJournal.open(options.state or default_state(names), names)
        cluster_id = identity([journal.mount_id, options.as_of or "", options.until or ""])
        parts = NodeParts.of(config, archives, cluster_id, door=door, share=options.processes)
        undo.callback(parts.loader.close)
        if options.warm:
            select_names(parts.view.topics, options.warm)  # a mistake is told before anybody is served
        host, port = options.advertise or listener.getsockname()[0], listener.getsockname()[1]
        ranges = tuple(archive.ranges for archive in archives)
        others = [
            SideNode(
                NodeOrder(
                    config=config,
                    number=number,
                    port=_port_after(options.listen, number),
                    cluster_id=cluster_id,
                    ranges=ranges,
                ),
                host,
            )
            for number in range(1, options.processes)
        ]
        shown = partial(
            Mounted,
            archives=names,
            topics=len(parts.view.topics),
            partitions=sum(topic.partition_count for topic in parts.view.topics.values()),
            state=journal.folder,
        )
        own = ServedNode(node_id=node_id(0), host=host, port=port)

        def ready() -> None:
            on_ready(shown(bootstrap=_bootstrap(parts.view)))

        figures = asyncio.run(_serve(parts, own, others, journal, listener=listener, work=work, ready=ready))
    mounted = shown(bootstrap=_bootstrap(parts.view))
    return MountReport(
        archives=names,
        bootstrap=mounted.bootstrap,
        cluster_id=cluster_id,
        topics=mounted.topics,
        partitions=mounted.partitions,
        requests=sum(sum(node.requests.values()) for node in figures),
        bytes=sum(node.sent_bytes for node in figures),
        started_at_ms=work.started_at_ms,
        finished_at_ms=now_ms(),
    )


def _bootstrap(view: ClusterView) -> str:
    return ",".join(f"{node.host}:{node.port}" for node in view.nodes)


def _port_after(address: str, number: int) -> int:
    """The port of another process: the next ones after that of the first, or any that is free."""
    first = int(address.rpartition(":")[2])
    if first + number > _PORT_MAX:
        raise UsageError(f"there is no port {first + number} for process {number}", hint="choose another --listen")
    return first + number if first else 0


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
            served_id=None if topic.served_id == NIL else topic.served_id,
        )
        for topic in view.topics.values()
    ]
    archives = {topic.archive.archive.url: topic.archive for topic in view.topics.values()}
    groups = {
        url: () if archive.moment.cluster is None else archive.moment.cluster.groups
        for url, archive in archives.items()
    }
    with collector_paused():
        return archived_positions(topics, groups)


async def _serve(
    parts: NodeParts,
    own: ServedNode,
    others: list[SideNode],
    journal: CommitJournal,
    *,
    listener: socket.socket,
    work: Work,
    ready: Callable[[], None],
) -> list[NodeFigures]:
    options, view = work.config.mount, parts.view
    coordinator = Coordinator(positions=positions_in(view), journal=journal)
    node = parts.node(own.node_id, coordinator=coordinator)

    def on_change(positions: Positions) -> None:
        coordinator.offsets.positions = positions
        node.changed()

    parts.renewal.prepare, parts.renewal.on_change = positions_in, on_change

    def figures() -> list[NodeFigures]:
        return [NodeFigures.of(node), *(figure for other in others for figure in other.figures)]

    stopped = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    with exporting(registry_of(figures), options, every_s=_BEAT_S) as alive:
        try:
            view.nodes = (own, *await asyncio.gather(*(other.start() for other in others)))
            tasks = [asyncio.create_task(other.serve(view.nodes)) for other in others]
            tasks.append(asyncio.create_task(_watch(work.stop, stopped, alive)))
            ready()
            await run_node(parts, node, listener, stopped, options)
        finally:
            await asyncio.gather(*(other.stop() for other in others))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            coordinator.close()
            await journal.close()
    return figures()


async def _watch(stop: threading.Event, stopped: asyncio.Event, alive: Callable[[str | None], None]) -> None:
    """Wait for a signal, which sets an event of threads; and tell that the loop turns."""
    while not stop.is_set():
        alive(None)
        await asyncio.to_thread(stop.wait, _BEAT_S)
    alive("the mount is stopping")
    stopped.set()

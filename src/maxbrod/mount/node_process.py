"""One more process of a mount: a node with a port of its own, which serves its share of the partitions.

Run by `side_nodes` as `python -m maxbrod.mount.node_process`. Standard input brings an order and then the nodes of the
cluster; its end, also when the mount was killed, ends this process. Standard output has a JSON document on each line:
the port, and from then on lines of the log and figures.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from maxbrod.config import Config
from maxbrod.errors import MaxbrodError
from maxbrod.mount.broker import BrokerNode, listen
from maxbrod.mount.heap import share_one_heap
from maxbrod.mount.metrics import NodeFigures
from maxbrod.mount.node_parts import NodeParts, door_of, open_archives, run_node
from maxbrod.mount.ranges import Ranges
from maxbrod.mount.view import ServedNode, node_id

_FIGURES_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrder:
    """What a node must know to serve the same cluster as the others."""

    config: Config
    number: int
    port: int
    """0: any that is free."""
    cluster_id: str
    ranges: tuple[Ranges, ...]
    """The ends of the logs of each archive: all nodes show the same version, whichever one a process opens."""


class _LogLines(logging.Handler):
    """Gives what is logged to the process that started this one."""

    def emit(self, record: logging.LogRecord) -> None:
        _say(log=[record.levelno, record.name, record.getMessage()])


_said = threading.Lock()


def _say(**document: Any) -> None:  # noqa: ANN401 - anything that JSON has
    # A reader that is gone is no reason to fail: the end of the input comes next.
    with _said, suppress(OSError, ValueError):
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


def main() -> int:
    share_one_heap()
    order: NodeOrder = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
    logger = logging.getLogger("maxbrod")
    logger.addHandler(_LogLines())
    # The terminal interrupts all processes at once; the first one decides when the others end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return _serve(order)
    except MaxbrodError as error:
        _say(failed=str(error))
        return error.exit_code


def _serve(order: NodeOrder) -> int:
    options = order.config.mount
    host = options.listen.rpartition(":")[0]
    door = door_of(options)
    with listen(f"{host}:{order.port}") as listener:
        held = None if options.follow else order.ranges
        archives = open_archives(order.config, held)
        parts = NodeParts.of(order.config, archives, order.cluster_id, door=door, share=options.processes)
        try:
            _say(port=listener.getsockname()[1])
            try:
                nodes: tuple[ServedNode, ...] = pickle.load(sys.stdin.buffer)  # noqa: S301
            except EOFError:
                return 0  # another process could not start
            parts.view.nodes = nodes
            asyncio.run(_run(parts, order, listener))
        finally:
            parts.loader.close()
    return 0


async def _run(parts: NodeParts, order: NodeOrder, listener: Any) -> None:  # noqa: ANN401 - a socket
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    threading.Thread(target=_await_end, args=(loop, stopped), daemon=True).start()
    node = parts.node(node_id(order.number), coordinator=None)
    parts.renewal.on_change = lambda _: node.changed()
    telling = asyncio.create_task(_tell(node))
    try:
        await run_node(parts, node, listener, stopped, order.config.mount)
    finally:
        telling.cancel()
        _say(figures=asdict(NodeFigures.of(node)))


def _await_end(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    while sys.stdin.buffer.read(1):
        pass
    with suppress(RuntimeError):  # the loop may have ended before
        loop.call_soon_threadsafe(stopped.set)


async def _tell(node: BrokerNode) -> None:
    while True:
        _say(figures=asdict(NodeFigures.of(node)))
        await asyncio.sleep(_FIGURES_S)


if __name__ == "__main__":
    sys.exit(main())

"""Starts the other processes of a mount, hears what they tell, and starts one again that has ended."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from maxbrod import strict_json
from maxbrod.errors import MaxbrodError, UnavailableError, UsageError
from maxbrod.mount.metrics import NodeFigures
from maxbrod.mount.node_process import NodeOrder
from maxbrod.mount.view import ServedNode, node_id

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from asyncio.subprocess import Process
    from collections.abc import Sequence

_LOG: Final = logging.getLogger(__name__)
_START_S: Final = 120.0
_STOP_S: Final = 20.0
_AGAIN_S: Final = 1.0
_LINE_BYTES_MAX: Final = 1 << 20


class SideNode:
    """One of the other processes."""

    def __init__(self, order: NodeOrder, host: str) -> None:
        self._order, self._host = order, host
        self._name = f"process {order.number} of the mount"
        self._running: _Running | None = None
        self._stopping = False
        self._retired: list[NodeFigures] = []
        self._figures = NodeFigures()

    @property
    def figures(self) -> list[NodeFigures]:
        """Those of the process, and of those before it that have ended."""
        return [*self._retired, self._figures]

    async def start(self) -> ServedNode:
        """Start the process and wait until it listens. MaxbrodError: it cannot."""
        self._running = running = await _Running.start()
        try:
            await running.send(self._order)
            async with asyncio.timeout(_START_S):
                port = await self._port(running)
        except TimeoutError:
            port = None
        except BaseException:
            await running.kill()
            raise
        if port is None:
            await running.kill()
            raise UnavailableError("it has ended before it was ready", object_name=self._name)
        # Started again, it must be where clients know it.
        self._order = replace(self._order, port=port)
        return ServedNode(node_id=node_id(self._order.number), host=self._host, port=port)

    async def _port(self, running: _Running) -> int | None:
        while (document := await running.heard()) is not None:
            if "failed" in document:
                raise UsageError(str(document["failed"]), object_name=self._name)
            if "port" in document:
                return int(document["port"])
        return None

    async def serve(self, nodes: Sequence[ServedNode]) -> None:
        """Let it serve, and start it again whenever it ends, until `stop`."""
        while (running := self._running) is not None:
            await running.send(tuple(nodes))
            while (document := await running.heard()) is not None:
                if "figures" in document:
                    self._figures = _figures(document["figures"])
            self._retired.append(self._figures.ended())
            self._figures = NodeFigures()
            if self._stopping:
                return
            await self._start_again()

    async def _start_again(self) -> None:
        while True:
            _LOG.error("%s has ended; it is started again", self._name)
            await asyncio.sleep(_AGAIN_S)
            try:
                await self.start()
            except MaxbrodError as error:
                _LOG.error("%s", error)
            else:
                return

    async def stop(self) -> None:
        """Let its clients have the answers that they wait for, and end the process."""
        self._stopping = True
        if self._running is not None:
            await self._running.stop()


class _Running:
    """A process and its pipes."""

    def __init__(self, process: Process, orders: StreamWriter, told: StreamReader) -> None:
        self._process, self._orders, self._told = process, orders, told

    @classmethod
    async def start(cls) -> Self:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "maxbrod.mount.node_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
        )
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a process was started without pipes")
        return cls(process, process.stdin, process.stdout)

    async def send(self, value: object) -> None:
        # One that has ended is noticed by what it tells.
        with suppress(OSError):
            self._orders.write(pickle.dumps(value))
            await self._orders.drain()

    async def heard(self) -> dict[str, Any] | None:
        """The next document; None at the end. What the process logs is logged here."""
        while line := await self._told.readline():
            document: dict[str, Any] = strict_json.parse(line)
            if "log" not in document:
                return document
            level, name, message = document["log"]
            logging.getLogger(name).log(level, "%s", message)
        await self._process.wait()
        return None

    async def stop(self) -> None:
        self._orders.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def _figures(document: dict[str, Any]) -> NodeFigures:
    slowest = document.pop("slowest")
    return NodeFigures(**document, slowest=None if slowest is None else (slowest[0], slowest[1], slowest[2]))

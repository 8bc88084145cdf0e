"""One connection, plain or encrypted: whole frames in, lists of buffers out.

Plain connections use the socket itself: records go from the cache to the kernel without being copied. Python's streams,
which encrypted connections use, copy them once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from maxbrod.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Buffer

_RECEIVED: Final = 64 << 10
_PIECES_MAX: Final = 512
"""The kernel accepts 1,024 at once."""
_WRITTEN: Final = 1 << 20
LENGTH_BYTES: Final = 4


class ClosedError(Exception):
    """The other side has closed the connection."""


class Channel(Protocol):
    async def frame(self, bytes_max: int) -> memoryview:
        """The next frame. ClosedError: there is none. CorruptDataError: it is larger than `bytes_max`."""

    async def send(self, pieces: Sequence[Buffer]) -> None: ...

    def close(self) -> None: ...


class PlainChannel:
    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def frame(self, bytes_max: int) -> memoryview:
        await self._fill(LENGTH_BYTES)
        size = checked_length(self._buffer[:LENGTH_BYTES], bytes_max)
        await self._fill(LENGTH_BYTES + size)
        found = bytes(self._buffer[LENGTH_BYTES : LENGTH_BYTES + size])
        del self._buffer[: LENGTH_BYTES + size]
        return memoryview(found)

    async def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            try:
                data = await self._loop.sock_recv(self._socket, _RECEIVED)
            except OSError as error:
                raise ClosedError from error
            if not data:
                raise ClosedError
            self._buffer += data

    async def send(self, pieces: Sequence[Buffer]) -> None:
        left = [view for piece in pieces if len(view := memoryview(piece).cast("B"))]
        while left:
            try:
                sent = self._socket.sendmsg(left[:_PIECES_MAX])
            except (BlockingIOError, InterruptedError):
                await self._writable()
                continue
            except OSError as error:
                raise ClosedError from error
            done = 0
            while done < len(left) and sent >= len(left[done]):
                sent -= len(left[done])
                done += 1
            del left[:done]
            if sent:
                left[0] = left[0][sent:]

    async def _writable(self) -> None:
        waiter = self._loop.create_future()
        self._loop.add_writer(self._socket, lambda: None if waiter.done() else waiter.set_result(None))
        try:
            await waiter
        finally:
            self._loop.remove_writer(self._socket)

    def close(self) -> None:
        self._loop.remove_writer(self._socket)
        with suppress(OSError):
            self._socket.close()


class TlsChannel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, connection: socket.socket, context: ssl.SSLContext) -> TlsChannel:
        """Shake hands. ClosedError: the other side does not speak TLS, or is not trusted."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_RECEIVED, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
        except (OSError, ssl.SSLError) as error:
            raise ClosedError from error
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    @property
    def certificate(self) -> dict[str, object] | None:
        """The certificate of the client, as Python describes it; None without one."""
        return self._writer.get_extra_info("peercert") or None

    async def frame(self, bytes_max: int) -> memoryview:
        try:
            size = checked_length(await self._reader.readexactly(LENGTH_BYTES), bytes_max)
            return memoryview(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ClosedError from error

    async def send(self, pieces: Sequence[Buffer]) -> None:
        try:
            for piece in pieces:
                view = memoryview(piece).cast("B")
                for start in range(0, len(view), _WRITTEN):
                    self._writer.write(view[start : start + _WRITTEN])
                    await self._writer.drain()
        except OSError as error:
            raise ClosedError from error

    def close(self) -> None:
        self._writer.close()


def checked_length(data: bytes | bytearray, bytes_max: int) -> int:
    size = int.from_bytes(data, "big", signed=True)
    if not 0 < size <= bytes_max:
        raise CorruptDataError(f"a frame of {size} bytes is refused; up to {bytes_max} are accepted")
    return size

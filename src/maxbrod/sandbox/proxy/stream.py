"""Moves bytes between two sockets: reads into one large buffer, writes with an optional rate and break point.

Knows no protocol.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import socket

    from maxbrod.sandbox.proxy.faults import Claim, CutFault

BUFFER_BYTES: Final = 256 * 1024
# A throttle sends this many pieces a second: fine enough for a client to see a slow stream, not a stuttering one.
_THROTTLE_PIECES_PER_SECOND: Final = 50

Bytes: TypeAlias = bytes | bytearray | memoryview


class SenderGoneError(Exception):
    """The side that we read from closed or reset the connection inside a message."""


class ReceiverGoneError(Exception):
    """The side that we write to closed or reset the connection."""


class CutError(Exception):
    """A fault, or the end of the proxy, wants this connection closed now."""

    def __init__(self, *, reset: bool = False) -> None:
        super().__init__("the connection is cut on purpose")
        self.reset = reset


class Inlet:
    """The reading end of a socket. A view it returns is valid until the next call, and may be written to."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    def wait(self) -> bool:
        """Wait for a byte; False: the sender is done, in an orderly way or not."""
        return self._start < self._end or self._fill()

    def read(self, bytes_max: int) -> memoryview:
        """The available bytes, at least one; empty when the sender is done."""
        if not self.wait():
            return self._view[:0]
        end = min(self._end, self._start + bytes_max)
        view = self._view[self._start : end]
        self._start = end
        return view

    def exactly(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            piece = self.read(size - len(data))
            if not piece:
                raise SenderGoneError
            data += piece
        return data

    def until(self, mark: bytes, bytes_max: int) -> bytearray:
        """The bytes up to and including the mark. ValueError: more than `bytes_max` without it."""
        taken = bytearray()
        while True:
            if not self.wait():
                raise SenderGoneError
            seen = max(0, len(taken) - len(mark) + 1)
            taken += self._view[self._start : self._end]
            found = taken.find(mark, seen)
            if found >= 0:
                end = found + len(mark)
                self._start = self._end - (len(taken) - end)
                return taken[:end]
            self._start = self._end
            if len(taken) > bytes_max:
                raise ValueError(f"no {mark!r} in {bytes_max} bytes")

    def pieces(self, size: int | None = None) -> Iterator[memoryview]:
        """The next `size` bytes as they arrive; None: all up to the end."""
        left = size
        while left is None or left > 0:
            piece = self.read(BUFFER_BYTES if left is None else left)
            if not piece:
                if left is None:
                    return
                raise SenderGoneError
            if left is not None:
                left -= len(piece)
            yield piece

    def _fill(self) -> bool:
        try:
            self._end = self._sock.recv_into(self._buffer)
        except OSError:
            self._end = 0
        self._start = 0
        return self._end > 0


class Gate:
    """Open until a blackhole closes it; then every send waits here."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._stopped = threading.Event()
        self._on_held: Callable[[], None] | None = None

    def shut(self, on_held: Callable[[], None]) -> None:
        self._on_held = on_held
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def stop(self) -> None:
        """The proxy ends: wake all waiting threads, and let no send pass again."""
        self._stopped.set()
        self._open.set()

    def pass_through(self) -> None:
        if not self._open.is_set():
            if self._on_held is not None:
                self._on_held()
            self._open.wait()
        if self._stopped.is_set():
            raise CutError

    def sleep(self, seconds: float) -> None:
        if seconds > 0 and self._stopped.wait(seconds):
            raise CutError


class Flow:
    """One outgoing message. `before_last` is called before its last byte is sent, if `ends_after` was called."""

    def __init__(
        self,
        sock: socket.socket,
        gate: Gate,
        *,
        cut: Claim[CutFault] | None = None,
        bytes_per_second: int | None = None,
        before_last: Callable[[], None] | None = None,
    ) -> None:
        self._sock = sock
        self._gate = gate
        self._cut = cut
        self._rate = bytes_per_second
        self._before_last = before_last
        self._end: int | None = None
        self._sent = 0
        self._started = time.monotonic()

    def ends_after(self, size: int) -> None:
        """Announce that `size` more bytes end the message."""
        self._end = self._sent + size

    def send(self, data: Bytes) -> None:
        if self._cut is not None and self._sent + len(data) >= self._cut.fault.after_bytes:
            # Counted first: the client may notice as soon as the last byte is out.
            self._cut.fire()
            self._pass(memoryview(data)[: self._cut.fault.after_bytes - self._sent])
            raise CutError(reset=self._cut.fault.reset)
        if self._before_last is not None and self._end is not None and self._sent + len(data) >= self._end:
            self._before_last()
        self._pass(data)

    def _pass(self, data: Bytes) -> None:
        if self._rate is None:
            self._sendall(data)
            return
        step = max(1, self._rate // _THROTTLE_PIECES_PER_SECOND)
        for start in range(0, len(data), step):
            self._sendall(memoryview(data)[start : start + step])
            self._gate.sleep(self._started + self._sent / self._rate - time.monotonic())

    def _sendall(self, data: Bytes) -> None:
        self._gate.pass_through()
        if len(data):
            try:
                self._sock.sendall(data)
            except OSError as error:
                raise ReceiverGoneError from error
        self._sent += len(data)


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes of a body as they pass; `size` is None if only its end determines it."""

    pieces: Iterator[memoryview]
    size: int | None

    def measured(self) -> Body:
        """The same body with a size; one of unknown size is read into memory."""
        if self.size is not None:
            return self
        whole = bytearray()
        for piece in self.pieces:
            whole += piece
        return Body(iter([memoryview(whole)] if whole else []), len(whole))

    def flipped(self, at: int, bit: int, fire: Callable[[], None]) -> Body:
        body = self.measured() if at < 0 else self
        return Body(_flip(body.pieces, at if at >= 0 else at + (body.size or 0), bit, fire), body.size)

    def drain(self) -> None:
        for _ in self.pieces:
            pass


def _flip(pieces: Iterator[memoryview], at: int, bit: int, fire: Callable[[], None]) -> Iterator[memoryview]:
    position = 0
    for piece in pieces:
        if position <= at < position + len(piece):
            fire()
            piece[at - position] ^= 1 << bit
        position += len(piece)
        yield piece


def shortened(pieces: Iterator[memoryview], size: int) -> Iterator[memoryview]:
    """The first `size` bytes; what follows stays unread in `pieces`, the rest of the last piece is dropped."""
    left = size
    while left > 0:
        piece = next(pieces, None)
        if piece is None:
            return
        yield piece[:left]
        left -= len(piece)

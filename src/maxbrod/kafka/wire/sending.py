"""Sends a frame of several pieces without joining them, by one system call if the socket supports it."""

from __future__ import annotations

import ssl
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

Piece: TypeAlias = "bytes | memoryview | NDArray[np.uint8]"
# The kernel accepts 1,024 at once.
_PIECES_MAX: Final = 512


def send_all(stream: socket.socket, pieces: Sequence[Piece], wait: Callable[[], None]) -> None:
    """Send all pieces in order. `wait` is called before each system call to set its timeout."""
    wait()
    if isinstance(stream, ssl.SSLSocket):
        # TLS has no gathering send, and encryption copies anyway. One TLS record for each piece would cost more.
        stream.sendall(b"".join(pieces))
        return
    sent = stream.sendmsg(pieces[:_PIECES_MAX])
    rest = deque[memoryview]()
    for piece in pieces:
        if sent >= len(piece):
            sent -= len(piece)
        else:
            rest.append(memoryview(piece)[sent:])
            sent = 0
    while rest:
        wait()
        sent = stream.sendmsg([rest[place] for place in range(min(len(rest), _PIECES_MAX))])
        while rest and sent >= len(rest[0]):
            sent -= len(rest.popleft())
        if sent:
            rest[0] = rest[0][sent:]

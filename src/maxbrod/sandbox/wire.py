"""One request and its answer on a connection: the wire protocol without a client around it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket


def ask(connection: socket.socket, request: Any, response_class: Any) -> Any:  # noqa: ANN401 - kafka-python is untyped
    """Send one request of kafka-python's and wait for its answer. OSError or struct.error where none comes."""
    request.with_header(correlation_id=1, client_id="maxbrod-sandbox")
    connection.sendall(request.encode(header=True, framed=True))
    with connection.makefile("rb") as stream:
        (size,) = struct.unpack(">i", stream.read(4))
        answer = stream.read(size)
    return response_class.decode(answer, version=request.API_VERSION, header=True)

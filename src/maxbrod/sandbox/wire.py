"""One request and its response on a connection, without a client."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket


def ask(connection: socket.socket, request: Any, response_class: Any) -> Any:  # noqa: ANN401 - kafka-python is untyped
    """Send a kafka-python request and wait for its response. OSError or struct.error: there is none."""
    request.with_header(correlation_id=1, client_id="maxbrod-sandbox")
    connection.sendall(request.encode(header=True, framed=True))
    with connection.makefile("rb") as stream:
        (size,) = struct.unpack(">i", stream.read(4))
        answer = stream.read(size)
    return response_class.decode(answer, version=request.API_VERSION, header=True)

"""Closes what kafka-python, with which tests look at clusters, leaves open: warnings are errors here."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def sockets_closed() -> None:
    """Close the socket of a connection that does not come about.

    A client that is closed while it connects leaves it to the garbage collector, which warns in the midst of any test.
    """
    import kafka.net.inet as library  # noqa: PLC0415 - when its warnings are filtered

    async def connect(
        self: Any, net: Any, addrinfo: Any, socket_options: Any = (), timeout_at: float | None = None
    ) -> Any:
        family, kind, proto, _, address = addrinfo
        stream = self.socket(family, kind, proto)
        try:
            stream.setblocking(False)
            for option in socket_options:
                stream.setsockopt(*option)
            return await self.sock_connect(net, stream, address, timeout_at=timeout_at)
        except BaseException:
            stream.close()
            raise

    library.KafkaNetSocket.connect = connect

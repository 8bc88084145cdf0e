"""Picks ports that are free now, and likely still free when a killed broker is restarted on them."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Final

from maxbrod.errors import EnvironmentMissingError
from maxbrod.sandbox.spec import HOST

# Below the range that Linux (32768) and macOS (49152) use for outgoing connections. Port 0 would pick inside it: any
# client could then hold the port of a broker that is down, and a client that retries can even connect to itself, so
# that the broker never gets its port back.
_RANGE: Final = range(12_000, 32_000)
_TRIES: Final = 1000


def free_ports(count: int) -> list[int]:
    """Distinct free ports on loopback."""
    generator = random.Random()  # noqa: S311 - no secret; its own state, so that a test's seed is not used up
    with ExitStack() as held:
        ports: list[int] = []
        for port in (generator.choice(_RANGE) for _ in range(_TRIES)):
            if len(ports) == count:
                return ports
            # Stays bound until all are picked, so that none is picked twice.
            candidate = held.enter_context(socket.socket())
            try:
                candidate.bind((HOST, port))
            except OSError:
                continue
            ports.append(port)
    raise EnvironmentMissingError(f"no {count} free ports on {HOST} between {_RANGE.start} and {_RANGE.stop}")

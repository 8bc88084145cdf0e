"""Serves the dashboard: listens, keeps the archives up to date, and answers until it is stopped."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import uvicorn

from maxbrod.cli.health import notify
from maxbrod.errors import UsageError
from maxbrod.model import now_ms
from maxbrod.mount.security import TlsFiles, ssl_context
from maxbrod.serve.app import Dashboard
from maxbrod.serve.door import TOKEN, Entrance, entrance_of, parse_address
from maxbrod.serve.report import ServeReport
from maxbrod.serve.shelf import Shelf

if TYPE_CHECKING:
    from maxbrod.serve.options import ServeOptions
    from maxbrod.work.work import Work

_BACKLOG: Final = 128
_CONNECTIONS_MAX: Final = 256
_PATIENCE_S: Final = 5
"""How long open requests may take when the dashboard ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a person must know to look at it."""

    address: str
    secret_address: str | None
    """The same with the token, if it was made for this start alone: told once."""
    archives: tuple[str, ...]


def serve(work: Work, on_ready: Callable[[Served], None] = lambda _: None) -> ServeReport:
    """Serve pages about archives until `work` is stopped. `on_ready` is called when a browser can connect."""
    config, options = work.config, work.config.serve
    urls = tuple(options.archives) or (config.archive_url,)
    with _listening(options) as listener:
        entrance = entrance_of(options, listener.getsockname()[1])
        tls = None
        if options.tls_cert is not None:
            tls = ssl_context(TlsFiles(certificate=options.tls_cert, key=options.tls_key))
        with Shelf(urls, config, every_s=options.every) as shelf:
            dashboard = Dashboard(shelf, entrance)
            settings = uvicorn.Config(
                dashboard.guard,
                # The log of requests would have addresses, and those have the token once.
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                limit_concurrency=_CONNECTIONS_MAX,
                timeout_graceful_shutdown=_PATIENCE_S,
                ssl_context_factory=None if tls is None else lambda *_: tls,
            )
            server = _Server(settings, lambda: on_ready(_served(entrance, urls)))
            asyncio.run(_answer(server, listener, work.stop))
    return ServeReport(
        archives=urls,
        address=entrance.address,
        requests=dashboard.guard.requests,
        refused=dashboard.guard.refused,
        started_at_ms=work.started_at_ms,
        finished_at_ms=now_ms(),
    )


class _Server(uvicorn.Server):
    """Leaves signals alone: the command has handlers of its own, which set the stop of its work."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()
        notify("READY=1")


def _served(entrance: Entrance, urls: tuple[str, ...]) -> Served:
    secret = f"{entrance.address}?{TOKEN}={entrance.token}" if entrance.generated else None
    return Served(address=entrance.address, secret_address=secret, archives=urls)


@contextmanager
def _listening(options: ServeOptions) -> Iterator[socket.socket]:
    host, port = parse_address(options.listen)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise UsageError(
            f"cannot listen: {error}", object_name=options.listen, hint="choose another --listen"
        ) from None
    with listener:
        yield listener


async def _answer(server: uvicorn.Server, listener: socket.socket, stop: threading.Event) -> None:
    async def watch() -> None:
        await asyncio.to_thread(stop.wait)
        notify("STOPPING=1")
        server.should_exit = True

    watching = asyncio.create_task(watch())
    try:
        await server.serve(sockets=[listener])
    finally:
        # If the server has ended by itself, nobody waits for the stop any more.
        stop.set()
        await asyncio.gather(watching, return_exceptions=True)

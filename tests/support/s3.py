"""Real S3 servers, a fault proxy before one, and a server of a few lines for what no real one would say."""

# ruff: noqa: PLC0415 - a run that needs no S3 must not pay for importing it, nor break with it

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from obstore.store import S3Store

    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import LyingS3Server, S3Server
    from support.immutable_s3 import CreateOnlyS3, LockingS3Server, VersionedS3Server


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    """An empty server of its own for each test: it starts in less than a tenth of a second."""
    from maxbrod.sandbox.s3 import S3Server

    with S3Server.start(tmp_path / "s3") as server:
        yield server


@pytest.fixture
def lying_s3(tmp_path: Path) -> Iterator[LyingS3Server]:
    from maxbrod.sandbox.s3 import LyingS3Server

    with LyingS3Server.start(tmp_path / "lying-s3") as server:
        yield server


@pytest.fixture
def s3_proxy(s3: S3Server) -> Iterator[FaultProxy]:
    """A proxy before `s3` that breaks nothing yet."""
    from maxbrod.sandbox.proxy.server import FaultProxy

    with FaultProxy(s3.address, protocol="http") as proxy:
        yield proxy


@pytest.fixture
def s3_store(s3: S3Server) -> S3Store:
    """Straight to `s3`, around the proxy: to see what is really there."""
    from obstore.store import S3Store

    return S3Store(**s3.store_options())


@pytest.fixture
def proxied_store(s3: S3Server, s3_proxy: FaultProxy) -> S3Store:
    """Through `s3_proxy`, without retries, so that each fault shows."""
    from obstore.store import S3Store

    return S3Store(**no_retries(s3.store_options(endpoint=s3_proxy.endpoint)))


@pytest.fixture
def create_only_s3(s3: S3Server, s3_proxy: FaultProxy) -> CreateOnlyS3:
    """A server whose users can create objects, and neither overwrite nor delete one."""
    from support.immutable_s3 import CreateOnlyS3, only_creating

    return CreateOnlyS3(server=s3, proxy=only_creating(s3_proxy))


@pytest.fixture
def locking_s3(tmp_path: Path) -> Iterator[LockingS3Server]:
    """A bucket with Object Lock, and without versions."""
    from support.immutable_s3 import LockingS3Server

    with LockingS3Server.start(tmp_path / "locking-s3") as server:
        yield server


@pytest.fixture
def versioned_s3(tmp_path: Path) -> Iterator[VersionedS3Server]:
    """A bucket with Object Lock and versions."""
    from support.immutable_s3 import VersionedS3Server

    with VersionedS3Server.start(tmp_path / "versioned-s3") as server:
        yield server


def no_retries(options: dict[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
    client = {**options["client_options"], "timeout": timedelta(seconds=timeout_s)}
    return {**options, "client_options": client, "retry_config": {"max_retries": 0}}


@pytest.fixture
def no_proxy_thread_left() -> Iterator[None]:
    yield
    # A thread that has left its proxy may still be on its last line.
    for thread in _proxy_threads():
        thread.join(5)
    assert _proxy_threads() == []


def _proxy_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("fault-proxy")]


@contextmanager
def loopback_server(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """A server of one function for each connection."""
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def run(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            serve(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection = listener.accept()[0]
                connections.append(connection)
                threads.append(threading.Thread(target=run, args=(connection,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()

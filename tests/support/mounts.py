"""A mount in this process, and a client that speaks the bare protocol: what it sends and gets is all there is."""

from __future__ import annotations

import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from kafka.protocol.consumer import FetchRequest, FetchResponse

from maxbrod.config import config_with
from maxbrod.mount.apis import api_table
from maxbrod.mount.verb import Mounted, mount
from maxbrod.work.work import Work

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.config import Config, StorageConfig

TABLE = api_table({})


@contextmanager
def mounted(
    *archives: Path | str, storage: StorageConfig | None = None, metrics_port: int | None = None, **options: Any
) -> Iterator[Mounted]:
    """Mount archives at a free port of loopback, as the command does it, until the block ends."""
    with tempfile.TemporaryDirectory() as state:
        given = {"archives": [str(each) for each in archives], "listen": "127.0.0.1:0", "state": state, **options}
        config = config_with(None, "mount", given, storage=storage)
        shown = replace(config.mount, metrics_port=metrics_port)  # for the command line only
        with _mounted(config.model_copy(update={"mount": shown})) as found:
            yield found


@contextmanager
def _mounted(config: Config) -> Iterator[Mounted]:
    ready: list[Mounted] = []
    failures: list[BaseException] = []
    arrived = threading.Event()

    def on_ready(found: Mounted) -> None:
        ready.append(found)
        arrived.set()

    def run() -> None:
        try:
            mount(work, on_ready)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever mounted
            failures.append(error)
        finally:
            arrived.set()

    with Work(config) as work:
        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert arrived.wait(60)
            if failures:
                raise failures[0]
            yield ready[0]
        finally:
            work.stop.set()
            thread.join(60)
            assert not thread.is_alive()
    if failures:
        raise failures[0]


class RawClient:
    """Sends requests as kafka-python encodes them, and decodes responses with its classes."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, request: Any, version: int) -> Any:
        self.send(request, version)
        return self.receive(request, version)

    def send(self, request: Any, version: int) -> None:
        self._correlation_id += 1
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation_id, client_id="raw")
        self.socket.sendall(request.encode(header=True, framed=True))

    def receive(self, request: Any, version: int) -> Any:
        frame = self.frame()
        response = TABLE[request.API_KEY].response
        found = response.decode(frame, version=min(version, response.max_version), header=True)
        assert found.header.correlation_id == self._correlation_id
        return found

    def frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the mount has closed the connection")
            data += part
        return bytes(data)


def fetch_request(
    places: dict[tuple[str, int], int],
    *,
    bytes_max: int = 1 << 20,
    partition_bytes_max: int = 1 << 20,
    wait_ms: int = 500,
    bytes_min: int = 1,
    isolation: int = 0,
    session: tuple[int, int] = (0, -1),
    forgotten: dict[str, list[int]] | None = None,
) -> Any:
    """A Fetch of partitions from offsets. `session`: its id and epoch."""
    topics: dict[str, list[Any]] = {}
    for (topic, partition), offset in places.items():
        topics.setdefault(topic, []).append(
            FetchRequest.FetchTopic.FetchPartition(
                partition=partition,
                current_leader_epoch=-1,
                fetch_offset=offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=partition_bytes_max,
            )
        )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=bytes_min,
        max_bytes=bytes_max,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchRequest.FetchTopic(topic=name, partitions=each) for name, each in topics.items()],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=name, partitions=each) for name, each in (forgotten or {}).items()
        ],
        rack_id="",
    )


def partitions_of(response: FetchResponse) -> dict[tuple[str, int], Any]:
    return {(topic.topic, each.partition_index): each for topic in response.responses for each in topic.partitions}


def read_all(client: RawClient, where: tuple[str, int], offset: int, *, version: int = 12, **limits: Any) -> bytes:
    """Every batch from an offset to the end of the log, fetched as a consumer does it."""
    found, wait_ms = bytearray(), 1_000
    while True:
        request = fetch_request({where: offset}, wait_ms=wait_ms, **limits)
        answer = partitions_of(client.ask(request, version))[where]
        assert answer.error_code == 0
        if offset >= answer.high_watermark:
            assert not answer.records
            return bytes(found)
        wait_ms = 1 if end_of(bytes(answer.records)) >= answer.high_watermark else wait_ms
        data = bytes(answer.records or b"")
        found += data
        offset = end_of(data) if data else offset


def end_of(data: bytes) -> int:
    """The offset after the last batch, by the plain layout of a header."""
    at, end = 0, -1
    while at < len(data):
        base, length, _, magic = struct.unpack_from(">qiib", data, at)
        delta = struct.unpack_from(">i", data, at + 23)[0] if magic == 2 else 0
        end = base + delta + 1
        at += 12 + length
    return end

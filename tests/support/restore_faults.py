"""Shared by the tests of faults: a topic in an archive, and a restore during which something happens."""

from __future__ import annotations

import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from kafka.protocol.api_key import ApiKey

from maxbrod.archive.renames import parse_rename
from maxbrod.errors import UnavailableError
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.wire.connection import Connection
from maxbrod.restore import run as engine
from maxbrod.restore import task as restore_task
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered
from maxbrod.work.work import Work
from support.backups import back_up, config_of
from support.ledger import Ledger
from support.programs.restores import requests_in
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from maxbrod.config import Config
    from maxbrod.restore.report import PartitionReport, RestoreReport
    from maxbrod.sandbox.cluster import Cluster
    from support.plain_log import Record

KEEP = {"retention.ms": "-1"}


class CrashError(BaseException):
    """A process that died: nothing catches it, and nothing is tidied up but connections."""


def renamed(mode: str = "exact", **more: Any) -> RestoreRequest:
    return RestoreRequest(rename=parse_rename(prefix="new-"), offsets=OffsetsMode(mode), **more)


def restore(config: Config, request: RestoreRequest) -> RestoreReport:
    with without_spark(), engine.Restore(Work(config), request) as work:
        return work.run(work.plan())


def archive(
    cluster: Cluster, topic: str, place: object, *, partitions: int = 1, records: int = 200, **options: Any
) -> tuple[Config, list[dict[int, Record]]]:
    """A topic in batches of 10, with the hole of a transaction in the middle, backed up; what each partition holds.

    Two neighbours share a codec and are restored as one batch of 20, but for gzip, which is not joined: 100 records on
    either side of the hole, in 6 batches.
    """
    create_topic(cluster, topic, partitions=partitions, config=KEEP)
    ledger = Ledger()
    for partition in range(partitions):
        ledger.write(cluster, topic, records // 2, partition=partition, batch=10, in_a_row=2)
        ledger.transact(cluster, topic, numbered(3), partition=partition, commit=False)
        ledger.write(cluster, topic, records // 2, partition=partition, batch=10, in_a_row=2)
    config = config_of(cluster, place, topic, **options)
    assert back_up(config).complete
    return config, [dict(ledger.of(cluster, topic, partition)) for partition in range(partitions)]


@contextmanager
def when_acknowledged(count: int, act: Callable[[], object]) -> Iterator[None]:
    """Something happens in the middle: after that many acknowledged batches and holes."""
    left = [count]

    def watched(*arguments: Any, **options: Any) -> Iterator[Any]:
        for acknowledged in produce_all(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                act()
            yield acknowledged

    with patch.object(restore_task, "produce_all", watched):
        yield
    assert left[0] <= 0, "it never came to that"


@contextmanager
def lost_answers(apis: Mapping[str, int]) -> Iterator[None]:
    """That many answers of each API are lost, although the broker has carried out the request."""
    left, asked = dict(apis), dict[tuple[Connection, int], str]()
    send_really, receive_really = Connection._send, Connection.receive

    def send(connection: Connection, pieces: Any, deadline: Any) -> None:
        send_really(connection, pieces, deadline)
        for key, ticket in requests_in(pieces):
            asked[connection, ticket] = next((name for name in apis if ApiKey[name].value == key), "")

    def receive(connection: Connection, ticket: int, deadline: Any) -> Any:
        frame = receive_really(connection, ticket, deadline)
        name = asked[connection, ticket]
        if left.get(name, 0):
            left[name] -= 1
            connection.close()
            raise UnavailableError("the answer is lost", object_name=connection.name)
        return frame

    with patch.object(Connection, "_send", send), patch.object(Connection, "receive", receive):
        yield
    assert not any(left.values()), f"never asked: {left}"


def failure_of(partition: PartitionReport) -> dict[str, Any]:
    assert partition.failure is not None
    return dict(partition.failure)


class Wire:
    """Requests of one API as they go out: one of them may be kept back by a crash, and sent much later."""

    def __init__(
        self, api: str, *, crash_at: int | None = None, before_first: Callable[[], None] | None = None
    ) -> None:
        self._api = ApiKey[api].value
        self._crash_at = crash_at
        self._before_first = before_first
        self._send = Connection._send
        self._count = 0
        self.frame = b""
        self._address = ("", 0)

    @contextmanager
    def watched(self) -> Iterator[None]:
        def send(connection: Connection, pieces: Any, deadline: Any) -> None:
            for request in _apart(pieces):
                if struct.unpack_from(">h", memoryview(request[0]), 4)[0] == self._api:
                    self._meet(connection, request)
                self._send(connection, request, deadline)

        with patch.object(Connection, "_send", send):
            yield

    def _meet(self, connection: Connection, pieces: Any) -> None:
        self._count += 1
        if self._count == self._crash_at:
            host, _, port = connection.name.rpartition(":")
            self.frame, self._address = b"".join(bytes(piece) for piece in pieces), (host, int(port))
            raise CrashError
        if self._count == 1 and self._before_first is not None:
            self._before_first()

    def arrive(self) -> None:
        """What was kept back reaches the broker, over a connection of its own, and is answered."""
        assert self.frame
        with socket.create_connection(self._address, timeout=60) as connection:
            connection.sendall(self.frame)
            (size,) = struct.unpack(">i", _received(connection, 4))
            _received(connection, size)


def _apart(pieces: Any) -> Iterator[list[Any]]:
    """Requests that would leave together, one by one: how many do so is a matter of time. A piece may begin one."""
    request, missing = list[Any](), 0
    for piece in pieces:
        if not request:
            missing = 4 + struct.unpack_from(">i", memoryview(piece))[0]
        request.append(piece)
        missing -= memoryview(piece).nbytes
        if not missing:
            yield request
            request = []
    assert not request, "a request is cut"


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data

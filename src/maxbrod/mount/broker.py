"""One node: takes requests of connections, decides who answers, and sends the answers in order.

A request is untrusted input. A frame has a bound, bytes that are no request end the connection, and so does silence.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from kafka.protocol.api_key import ApiKey

from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.mount import apis, metadata, refusals
from maxbrod.mount.apis import Api, Message
from maxbrod.mount.channels import LENGTH_BYTES, Channel, ClosedError, PlainChannel, TlsChannel
from maxbrod.mount.coordinator import KEYS as GROUP_KEYS
from maxbrod.mount.coordinator import KEYS_BY_ID as GROUP_KEYS_BY_ID
from maxbrod.mount.coordinator import Client, Coordinator
from maxbrod.mount.descriptions import Describer
from maxbrod.mount.fetch import Fetcher
from maxbrod.mount.offsets import OffsetFinder
from maxbrod.mount.security import ANONYMOUS, Logins, LoginSession, tls_principal
from maxbrod.mount.security import KEYS as LOGIN_KEYS

if TYPE_CHECKING:
    from collections.abc import Buffer

    from maxbrod.mount.loads import ChunkLoader
    from maxbrod.mount.view import ClusterView

_LOG: Final = logging.getLogger(__name__)
FRAME_BYTES_MAX: Final = 8 << 20
"""The bound of a request: a fetch of 100,000 partitions has half of this."""
IDLE_S: Final = 600.0
"""Kafka's own default of connections.max.idle.ms."""
SEND_S: Final = 120.0
CONNECTIONS_MAX: Final = 4096
_STRANGER_BYTES_MAX: Final = 256 << 10
"""The bound of a request before the login."""
_HANDSHAKE_S: Final = 30.0
"""Within this time a client shakes hands, and sends each message of its login."""
_FOR_STRANGERS: Final = frozenset({ApiKey.ApiVersions, *LOGIN_KEYS})
_BACKLOG: Final = 512
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_FETCH_BY_NAME: Final = 12
_DRAIN_S: Final = 10.0
"""How long a node that stops waits for answers: those to members of a group may take minutes."""
_REFUSALS_S: Final = 10.0
"""The least time between two lines of the log about refused connections."""
_RANGES: Final[dict[int, tuple[int, int]]] = {
    ApiKey.Fetch: (4, 17),
    ApiKey.Produce: (0, 12),
}

Answer: TypeAlias = "Message | list[Buffer]"
"""A message, or the encoded body of one."""
Handler: TypeAlias = Callable[[Message, int, "Caller"], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks. `reader` distinguishes connections."""

    reader: int
    client_id: str
    host: str
    principal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """How clients come in: encrypted or not, and by which logins."""

    context: ssl.SSLContext | None = None
    logins: Logins = field(default_factory=Logins)


class BrokerNode:
    """`coordinator` None: another node has it."""

    def __init__(
        self,
        view: ClusterView,
        loader: ChunkLoader,
        node_id: int,
        *,
        coordinator: Coordinator | None,
        door: Door,
        with_ids: bool,
        connections_max: int,
    ) -> None:
        self._view, self.loader, self._coordinator, self.node_id = view, loader, coordinator, node_id
        self._connections_max, self._door = connections_max, door
        self.fetcher = Fetcher(view, loader, node_id)
        self._offsets = OffsetFinder(view, loader, node_id)
        self._describer = Describer(view, loader, node_id)
        limits: dict[int, tuple[int, int]] = (
            dict(_RANGES) if with_ids else {**_RANGES, ApiKey.Fetch: (4, _FETCH_BY_NAME)}
        )
        limits.update({**GROUP_KEYS, **(GROUP_KEYS_BY_ID if with_ids else {})})
        limits.update(LOGIN_KEYS)
        self._handlers = self._own_handlers()
        known = apis.api_table(limits)
        self.table: Mapping[int, Api] = {
            key: api
            for key, api in known.items()
            if key in self._handlers or key in refusals.REFUSED or key in LOGIN_KEYS
        }
        self._connections: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None] | None] = set()
        """Connections that wait for a request."""
        self._draining = False
        self._refused_at = -_REFUSALS_S
        self._next_reader = 0
        self.requests: dict[int, int] = {}
        self.refused = 0
        """Connections beyond the bound."""

    def _own_handlers(self) -> dict[int, Handler]:
        return {
            ApiKey.Fetch: lambda request, version, caller: self.fetcher.fetch(request, version, caller.reader),
            ApiKey.ListOffsets: lambda request, version, caller: self._offsets.list_offsets(
                self.table[ApiKey.ListOffsets], request, version, caller.reader
            ),
            ApiKey.OffsetForLeaderEpoch: lambda request, version, _: self._offsets.epochs(
                self.table[ApiKey.OffsetForLeaderEpoch], request, version
            ),
            ApiKey.Metadata: self._of_view(ApiKey.Metadata, metadata.describe),
            ApiKey.DescribeCluster: self._of_view(ApiKey.DescribeCluster, metadata.describe_cluster),
            ApiKey.DescribeTopicPartitions: self._of_view(ApiKey.DescribeTopicPartitions, metadata.describe_partitions),
            ApiKey.FindCoordinator: self._of_view(ApiKey.FindCoordinator, metadata.find_coordinator),
            ApiKey.ApiVersions: self._versions,
            **dict.fromkeys(GROUP_KEYS, self._coordinate),
            **{key: self._described(key, answer) for key, answer in self._describer.answers.items()},
        }

    def _described(self, key: int, answer: Callable[[Api, Message, int], Awaitable[Message]]) -> Handler:
        return lambda request, version, _: answer(self.table[key], request, version)

    async def _coordinate(self, request: Message, version: int, caller: Caller) -> Message:
        if self._coordinator is None:
            return refusals.answer_elsewhere(self.table[request.API_KEY], request, version)
        client = Client(client_id=caller.client_id, host=caller.host, principal=caller.principal)
        return await self._coordinator.handle(request, version, client)

    def _of_view(self, key: int, answer: Callable[[Api, Message, int, ClusterView], Message]) -> Handler:
        async def handle(request: Message, version: int, _: Caller) -> Message:
            return answer(self.table[key], request, version, self._view)

        return handle

    async def _versions(self, request: Message, version: int, _: Caller) -> Message:
        astray = version >= 5 and metadata.meant_for_another(request, self._view.cluster_id, self.node_id)
        code = metadata.REBOOTSTRAP_REQUIRED if astray else Code.NONE
        return metadata.api_versions(self.table[ApiKey.ApiVersions], self.table.values(), code)

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Accept connections until `stop`, then let each finish the request that it is at."""
        loop = asyncio.get_running_loop()
        accepting = asyncio.create_task(self._accept(loop, listener))
        await stop.wait()
        accepting.cancel()
        with suppress(asyncio.CancelledError):
            await accepting
        self._draining = True
        self.fetcher.stopping.set()
        for connection in self._connections & self._idle:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=_DRAIN_S)
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno not in _NO_FILES:
                    raise
                # Others must close first: until then nobody is accepted.
                await asyncio.sleep(0.2)
                continue
            if len(self._connections) >= self._connections_max:
                connection.close()
                self._note_refusal(str(address[0]), loop.time())
                continue
            task = asyncio.create_task(self._connection(connection, str(address[0])))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    def _note_refusal(self, host: str, now: float) -> None:
        self.refused += 1
        if now - self._refused_at >= _REFUSALS_S:
            self._refused_at = now
            _LOG.warning("a connection of %s is refused: there are %d already", host, self._connections_max)

    def changed(self) -> None:
        """The view shows something else."""
        self.fetcher.changed()

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def _connection(self, connection: socket.socket, host: str) -> None:
        self._next_reader += 1
        reader = self._next_reader
        channel: Channel | None = None
        try:
            channel, session = await self._open(connection)
            while not self._draining:
                frame = await self._request(channel, session)
                pieces = await asyncio.shield(self._answer(frame, session, reader, host))
                size = sum(memoryview(piece).nbytes for piece in pieces)
                async with asyncio.timeout(SEND_S):
                    await channel.send([size.to_bytes(LENGTH_BYTES, "big"), *pieces])
                # Not until the next answer: a client may take its time.
                del pieces
                self.fetcher.release(reader)
                if session.failed:
                    return
        except (ClosedError, TimeoutError):
            pass
        except CorruptDataError as error:
            _LOG.warning("a connection of %s is closed: %s", host, error)
        except Exception:  # noqa: BLE001 - it is logged with its trace
            # A mistake of ours ends one connection, and is not hidden.
            _LOG.exception("a request of %s could not be answered", host)
        finally:
            self.fetcher.release(reader)
            if channel is not None:
                channel.close()
            else:
                connection.close()

    async def _request(self, channel: Channel, session: LoginSession) -> memoryview:
        """The next request of a connection, which may end while it waits for one."""
        known = session.is_authenticated
        task = asyncio.current_task()
        self._idle.add(task)
        try:
            async with asyncio.timeout(IDLE_S if known else _HANDSHAKE_S):
                return await channel.frame(FRAME_BYTES_MAX if known else _STRANGER_BYTES_MAX)
        finally:
            self._idle.discard(task)

    async def _open(self, connection: socket.socket) -> tuple[Channel, LoginSession]:
        if self._door.context is None:
            return PlainChannel(connection), LoginSession(self._door.logins)
        async with asyncio.timeout(_HANDSHAKE_S):
            channel = await TlsChannel.open(connection, self._door.context)
        return channel, LoginSession(self._door.logins, certified=tls_principal(channel.certificate))

    async def _answer(self, frame: memoryview, session: LoginSession, reader: int, host: str) -> list[Buffer]:
        if session.expects_raw:
            token = await session.handle_raw(bytes(frame))
            if token is None:
                raise ClosedError
            return [token]
        header = apis.read_header(frame, self.table)
        if header.key not in _FOR_STRANGERS and (not session.is_authenticated or session.expired()):
            raise CorruptDataError(f"the request {header.key} comes from somebody who has not logged in")
        api = self.table.get(header.key)
        if api is None:
            raise CorruptDataError(f"the request {header.key} is not served")
        self.requests[header.key] = self.requests.get(header.key, 0) + 1
        start = apis.response_start(api, header.version, header.correlation_id)
        if not api.low <= header.version <= api.high:
            if header.key != ApiKey.ApiVersions:
                raise CorruptDataError(f"version {header.version} of the request {header.key} is not served")
            # Its client knows the oldest form, and asks again with a version that is in it.
            return [start, metadata.api_versions(api, [api], Code.UNSUPPORTED_VERSION).encode(version=0)]
        request = apis.decode(api, header.version, header.body)
        if header.key in LOGIN_KEYS:
            return [start, api.encode(await session.handle(request, header.version), header.version)]
        principal = session.principal or ANONYMOUS
        caller = Caller(reader=reader, client_id=header.client_id or "", host=host, principal=principal)
        answer = await self._handle(api, request, header.version, caller)
        if isinstance(answer, list):
            return [start, *answer]
        return [start, api.encode(answer, header.version)]

    async def _handle(self, api: Api, request: Message, version: int, caller: Caller) -> Answer:
        handler = self._handlers.get(api.key)
        if handler is not None:
            return await handler(request, version, caller)
        if api.key == ApiKey.Produce and request.acks == 0:
            raise ClosedError  # whoever wants no answer learns it this way, as from a broker
        return refusals.refuse(api, request)


def listen(address: str) -> socket.socket:
    """A socket that listens at `host:port`. UsageError: that is no address, or it is in use."""
    host, _, port = address.rpartition(":")
    try:
        number = int(port)
        ipaddress.IPv4Address(host)
    except ValueError:
        raise UsageError(
            f"{address!r} is not an IPv4 address with a port",
            hint="give one such as 127.0.0.1:9092; clients get it in answers, where a name may mean another machine",
        ) from None
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, number))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise UsageError(f"cannot listen: {error}", object_name=address, hint="choose another --listen") from None
    listener.setblocking(False)
    return listener

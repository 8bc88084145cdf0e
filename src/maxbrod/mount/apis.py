"""The table of Kafka's requests: their message classes, and the versions that are served.

Every message is decoded and encoded by kafka-python's generated classes, except the response of Fetch: see `fetch`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, TypeAlias

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_key import ApiKey

from maxbrod.errors import CorruptDataError
from maxbrod.kafka.wire.messages import message_class
from maxbrod.mount.coordinator import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

Message: TypeAlias = Any
"""A request or response of kafka-python, which is untyped."""
HEADER: Final = struct.Struct(">hhi")
"""API key, version, correlation id."""
_LENGTH: Final = struct.Struct(">h")
_NO_TAGS: Final = b"\0"
_DIGITS_MAX: Final = 5
"""Bytes of a number of 32 bits, 7 bits in each."""


_OWN: Final = {
    f"{name}{kind}": message_class(f"{name}{kind}")
    for name in ("GetTelemetrySubscriptions", "PushTelemetry")
    for kind in ("Request", "Response")
}
# The library has older versions only. Not its response, which has the form of version 4: kafka-python's own clients
# would take ours for theirs.
_OWN["ApiVersionsRequest"] = message_class("ApiVersionsRequest")


def _classes() -> dict[str, Message]:
    modules: Iterable[ModuleType] = (admin, consumer, metadata, producer, sasl)
    return {
        **{name: found for module in modules for name, found in vars(module).items() if isinstance(found, type)},
        **_OWN,
        "ConsumerGroupDescribeRequest": ConsumerGroupDescribeRequest,
        "ConsumerGroupDescribeResponse": ConsumerGroupDescribeResponse,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One kind of request, and the versions of it that are served."""

    key: int
    request: Message
    response: Message
    low: int
    high: int

    def flexible(self, version: int) -> bool:
        return bool(self.request.flexible_version_q(version))

    def encode(self, answer: Message, version: int) -> bytes:
        """The body of a response. One that did not change with the newest version is known in the one before."""
        return bytes(answer.encode(version=min(version, self.response.max_version)))


def api_table(limits: Mapping[int, tuple[int, int]], *, without: Iterable[int] = ()) -> dict[int, Api]:
    """All requests that kafka-python knows, each over its whole range or within these limits."""
    known, found = _classes(), {}
    for name, request in known.items():
        if not name.endswith("Request") or not isinstance(getattr(request, "json", None), dict):
            continue
        response, key = known.get(f"{name.removesuffix('Request')}Response"), int(request.API_KEY)
        if response is None or key in without:
            continue
        low, high = limits.get(key) or request.valid_versions
        found[key] = Api(key=key, request=request, response=response, low=int(low), high=int(high))
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: memoryview


def read_header(frame: memoryview, table: Mapping[int, Api]) -> RequestHeader:
    """The header of a request, and the rest of the frame. CorruptDataError: it is not one."""
    try:
        key, version, correlation_id = HEADER.unpack_from(frame)
        (length,) = _LENGTH.unpack_from(frame, HEADER.size)
        at = HEADER.size + _LENGTH.size
        client_id = None if length < 0 else bytes(frame[at : at + length]).decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptDataError(f"this is not a request of Kafka: {error}") from None
    at += max(length, 0)
    if at > len(frame):
        raise CorruptDataError("a request ends within its header")
    api = table.get(key)
    if api is not None and api.flexible(version):
        at = _skip_tags(frame, at)
    return RequestHeader(key=key, version=version, correlation_id=correlation_id, client_id=client_id, body=frame[at:])


def _skip_tags(frame: memoryview, at: int) -> int:
    count, at = _number(frame, at)
    for _ in range(count):
        _, at = _number(frame, at)
        size, at = _number(frame, at)
        at += size
    if at > len(frame):
        raise CorruptDataError("a request ends within its header")
    return at


def _number(frame: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_DIGITS_MAX):
        if at >= len(frame):
            break
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at
    raise CorruptDataError("a request has a number that does not end")


def decode(api: Api, version: int, body: memoryview) -> Message:
    """The request. CorruptDataError: its bytes are none."""
    try:
        return api.request.decode(body, version=version)
    except Exception as error:  # noqa: BLE001 - generated code fails in many ways, and the bytes come from anybody
        raise CorruptDataError(f"a request cannot be decoded: {type(error).__name__}: {error}") from None


def response_start(api: Api, version: int, correlation_id: int) -> bytes:
    """The header of a response. That of ApiVersions never has tags: a client reads it before it knows versions."""
    tags = _NO_TAGS if api.flexible(version) and api.key != ApiKey.ApiVersions else b""
    return correlation_id.to_bytes(4, "big", signed=True) + tags

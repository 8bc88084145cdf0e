"""Finds out which security protocol a listener speaks, for whoever spoke another one to it and got no answer.

A listener that is spoken to in another protocol just closes the connection, as a broker that dies does. A handshake of
SASL tells them apart: every listener answers it, one without SASL by saying that this is no time for it. No secret is
sent, and nothing is believed of who answers.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import TYPE_CHECKING, Final

from kafka.protocol.sasl import SaslHandshakeRequest

from maxbrod.errors import UsageError
from maxbrod.kafka.wire.error_codes import Code

if TYPE_CHECKING:
    from maxbrod.config import KafkaConfig
    from maxbrod.kafka.wire.deadline import Deadline

_TIMEOUT_S: Final = 3.0
_HEAD: Final = struct.Struct(">iih")  # length, correlation id, error code
_CORRELATION_ID: Final = 1
_PROTOCOLS: Final = {
    (False, False): "PLAINTEXT",
    (False, True): "SASL_PLAINTEXT",
    (True, False): "SSL",
    (True, True): "SASL_SSL",
}


def protocol_mistake(host: str, port: int, config: KafkaConfig, deadline: Deadline) -> UsageError | None:
    """The error for a listener that speaks another protocol than the configuration says; None: it cannot be told."""
    found = find_protocol(host, port, deadline)
    if found is None or found == config.security_protocol:
        return None
    return UsageError(
        f"the listener speaks {found}, and was spoken to in {config.security_protocol}",
        operation="connect",
        object_name=f"{host}:{port}",
        hint=f"set security.protocol to {found}, or name the address of another listener",
    )


def find_protocol(host: str, port: int, deadline: Deadline) -> str | None:
    """Kafka's name for what the listener speaks; None: it does not answer, or is none of Kafka's."""
    for tls in (False, True):
        try:
            sasl = _takes_logins(host, port, tls=tls, timeout_s=max(min(_TIMEOUT_S, deadline.remaining_s), 0.001))
        except ssl.SSLError as error:
            # It wants a certificate of the client: then that is the login.
            sasl = False if tls and "certificate" in str(error).lower() else None
        except OSError:
            sasl = None
        if sasl is not None:
            return _PROTOCOLS[tls, sasl]
    return None


def _takes_logins(host: str, port: int, *, tls: bool, timeout_s: float) -> bool | None:
    request = SaslHandshakeRequest(mechanism="", version=1)
    request.with_header(correlation_id=_CORRELATION_ID, client_id="maxbrod")
    with socket.create_connection((host, port), timeout=timeout_s) as stream:
        if not tls:
            return _answer(stream, request.encode(header=True, framed=True))
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(stream, server_hostname=host) as secured:
            return _answer(secured, request.encode(header=True, framed=True))


def _answer(stream: socket.socket, request: bytes) -> bool | None:
    stream.sendall(request)
    head = b""
    while len(head) < _HEAD.size:
        received = stream.recv(_HEAD.size - len(head))
        if not received:
            return None
        head += received
    _, correlation_id, code = _HEAD.unpack(head)
    known = {Code.UNSUPPORTED_SASL_MECHANISM: True, Code.ILLEGAL_SASL_STATE: False}
    return known.get(code) if correlation_id == _CORRELATION_ID else None

"""TLS and SASL of a connection, and detection of the security protocol that a listener speaks.

No error, log line or repr shows a secret. The SASL mechanisms are kafka-python's.

A listener that receives another protocol just closes the connection, as a dying broker does. A SASL handshake
distinguishes them: every listener answers it, and one without SASL with ILLEGAL_SASL_STATE. The probe sends no secret
and trusts nothing in the answer.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import TYPE_CHECKING, Any, Final

from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from maxbrod.errors import AccessDeniedError, UsageError
from maxbrod.kafka.wire.error_codes import Code, answered_with, code_name
from maxbrod.kafka.wire.tokens import TokenProvider, forget_tokens, msk_message
from maxbrod.private_files import refuse_readable_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.config import KafkaConfig, SaslConfig
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline

_LOG_IN: Final = "log in"
_UNKNOWN_AUTHORITY: Final = "tls.ca_file must hold the authority that signed it"
_OTHER_HOST: Final = "name an address that it was issued for; tls.check_hostname: false trusts it under any"
# OpenSSL's X509_V_ERR_* numbers.
_CERTIFICATE_HINTS: Final = {
    9: "it is not valid yet; check the clock of this machine",
    10: "it has expired; the broker needs a new one, unless the clock of this machine is wrong",
    62: _OTHER_HOST,
    64: _OTHER_HOST,
}

_PROBE_TIMEOUT_S: Final = 3.0
_PROBE_HEAD: Final = struct.Struct(">iih")  # length, correlation id, error code
_CORRELATION_ID: Final = 1
_PROTOCOLS: Final = {
    (False, False): "PLAINTEXT",
    (False, True): "SASL_PLAINTEXT",
    (True, False): "SSL",
    (True, True): "SASL_SSL",
}


def tls_context(config: KafkaConfig) -> ssl.SSLContext | None:
    """The TLS context from the configured files; None if the protocol has no TLS."""
    if config.security_protocol not in {"SSL", "SASL_SSL"}:
        return None
    tls = config.tls
    context = ssl.create_default_context()
    context.check_hostname = tls.check_hostname
    name = "tls.ca_file"
    try:
        if tls.ca_file is not None:
            # Then only this authority is trusted, as with Java's truststore.
            context = ssl.create_default_context(cafile=tls.ca_file)
            context.check_hostname = tls.check_hostname
        name = "tls.certificate_file"
        if tls.certificate_file is not None:
            key_file = tls.key_file or tls.certificate_file
            refuse_readable_key(key_file, key_file.stat())
            password = tls.key_password.get_secret_value() if tls.key_password else ""
            # Without a password OpenSSL would prompt at the terminal and wait.
            context.load_cert_chain(tls.certificate_file, tls.key_file, password)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "it is not usable PEM"
        hint = "PEM files are needed, and for an encrypted key its password"
        raise UsageError(f"{name} cannot be loaded: {reason}", operation="open TLS", hint=hint) from None
    return context


def tls_failure(error: ssl.SSLError, broker: str) -> UsageError | None:
    """The error for a certificate that one side refused; None for a broken connection."""
    reason = (error.reason or "") + str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return UsageError(
            f"the broker's certificate is refused: {error.verify_message}",
            operation="open TLS",
            object_name=broker,
            hint=_CERTIFICATE_HINTS.get(error.verify_code, _UNKNOWN_AUTHORITY),
        )
    if "certificate" in reason.lower() or "HANDSHAKE_FAILURE" in reason:
        return UsageError(
            "the broker refuses our certificate, or requires one and got none",
            operation="open TLS",
            object_name=broker,
            hint="give tls.certificate_file and tls.key_file, signed by an authority that the broker trusts",
        )
    return None


def log_in(config: SaslConfig, broker: str, ask: Callable[[Message], Any]) -> float:
    """Authenticate through `ask`, which sends one request. Returns the lifetime of the login in seconds, 0 for ever."""
    _agree(config, broker, ask)
    if config.mechanism == "AWS_MSK_IAM":
        answer = ask(SaslAuthenticateRequest(auth_bytes=msk_message(broker.rpartition(":")[0], config.region)))
        if answer.error_code or not answer.auth_bytes:
            raise _refused(config, broker, answer)
        return float(answer.session_lifetime_ms or 0) / 1000
    mechanism = get_sasl_mechanism(config.mechanism)(**_credentials(config))
    while not mechanism.is_done():
        answer = ask(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes()))
        if answer.error_code:
            raise _refused(config, broker, answer)
        try:
            mechanism.receive(bytes(answer.auth_bytes))
        except (ValueError, KeyError):
            # From None: the library's message may quote the exchange.
            message = f"the broker does not prove that it knows the password ({config.mechanism})"
            raise AccessDeniedError(message, operation=_LOG_IN, object_name=broker) from None
    if not mechanism.is_authenticated():
        raise AccessDeniedError(f"{config.mechanism} did not succeed", operation=_LOG_IN, object_name=broker)
    return float(answer.session_lifetime_ms or 0) / 1000


def _agree(config: SaslConfig, broker: str, ask: Callable[[Message], Any]) -> None:
    answer = ask(SaslHandshakeRequest(mechanism=config.mechanism))
    if answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(sorted(answer.mechanisms)) or "none"
        message = f"the broker does not offer {config.mechanism} on this listener; it offers {offered}"
        raise UsageError(message, operation=_LOG_IN, object_name=broker, hint="set kafka.sasl.mechanism to one of them")
    if answer.error_code == Code.ILLEGAL_SASL_STATE:
        raise UsageError(
            "the listener does not use SASL, but the configuration does",
            operation=_LOG_IN,
            object_name=broker,
            hint="set security.protocol to PLAINTEXT or SSL, or use the address of another listener",
        )
    if answer.error_code:
        raise answered_with(answer.error_code, operation=_LOG_IN, object_name=broker)


def _refused(config: SaslConfig, broker: str, answer: Message) -> AccessDeniedError:
    forget_tokens()
    said = str(answer.error_message or code_name(answer.error_code))
    if any(secret in said for secret in _secrets(config)):
        said = code_name(answer.error_code)
    return AccessDeniedError(
        f"the broker refuses the login by {config.mechanism}: {said}",
        operation=_LOG_IN,
        object_name=broker,
        hint="check kafka.sasl: mechanism, username and password, token, or client",
    )


def _secrets(config: SaslConfig) -> list[str]:
    return [
        each.get_secret_value()
        for each in (config.password, config.token, config.client_secret)
        if each and each.get_secret_value()
    ]


def _credentials(config: SaslConfig) -> dict[str, Any]:
    if config.mechanism == "OAUTHBEARER":
        return {"sasl_oauth_token_provider": TokenProvider(config)}
    username = config.username or ""
    if config.mechanism.startswith("SCRAM"):
        # RFC 5802, 5.1. kafka-python leaves this to the caller.
        username = username.replace("=", "=3D").replace(",", "=2C")
    return {
        "sasl_mechanism": config.mechanism,
        "sasl_plain_username": username,
        "sasl_plain_password": config.password.get_secret_value() if config.password else "",
    }


def protocol_mistake(host: str, port: int, config: KafkaConfig, deadline: Deadline) -> UsageError | None:
    """The error for a listener whose protocol differs from the configuration; None if unknown."""
    found = find_protocol(host, port, deadline)
    if found is None or found == config.security_protocol:
        return None
    return UsageError(
        f"the listener uses {found}, but the configuration says {config.security_protocol}",
        operation="connect",
        object_name=f"{host}:{port}",
        hint=f"set security.protocol to {found}, or use the address of another listener",
    )


def find_protocol(host: str, port: int, deadline: Deadline) -> str | None:
    """Kafka's name for the protocol of the listener; None if it does not answer or is not Kafka's."""
    for tls in (False, True):
        try:
            sasl = _takes_logins(host, port, tls=tls, timeout_s=max(min(_PROBE_TIMEOUT_S, deadline.remaining_s), 0.001))
        except ssl.SSLError as error:
            # It requires a client certificate, which is its login.
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
            return _probe(stream, request.encode(header=True, framed=True))
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(stream, server_hostname=host) as secured:
            return _probe(secured, request.encode(header=True, framed=True))


def _probe(stream: socket.socket, request: bytes) -> bool | None:
    stream.sendall(request)
    head = b""
    while len(head) < _PROBE_HEAD.size:
        received = stream.recv(_PROBE_HEAD.size - len(head))
        if not received:
            return None
        head += received
    _, correlation_id, code = _PROBE_HEAD.unpack(head)
    known = {Code.UNSUPPORTED_SASL_MECHANISM: True, Code.ILLEGAL_SASL_STATE: False}
    return known.get(code) if correlation_id == _CORRELATION_ID else None

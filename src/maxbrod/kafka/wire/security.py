"""TLS and SASL of a connection, and detection of the security protocol that a listener speaks.

No error, log line or repr shows a secret. The SASL mechanisms are kafka-python's. Tokens for OAUTHBEARER come from an
OAuth 2 token endpoint (client credentials, RFC 6749 4.4). A token serves all connections of a process until shortly
before it expires. No error shows a token, or what the endpoint said beyond its error code.

A listener that receives another protocol just closes the connection, as a dying broker does. A SASL handshake
distinguishes them: every listener answers it, and one without SASL with ILLEGAL_SASL_STATE. The probe sends no secret
and trusts nothing in the answer.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import socket
import ssl
import struct
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.msk import AwsMskIamClient
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from maxbrod import strict_json
from maxbrod.errors import AccessDeniedError, EnvironmentMissingError, UnavailableError, UsageError
from maxbrod.kafka.wire.error_codes import Code, answered_with, code_name
from maxbrod.private_files import refuse_readable_key

if TYPE_CHECKING:
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

_FETCH: Final = "get a token"
_TIMEOUT_S: Final = 30.0
_LIFETIME_S: Final = 300.0
"""Assumed where the endpoint does not say it."""
_USED: Final = 0.8
"""The part of its lifetime after which a token is replaced."""
_ANSWER_BYTES_MAX: Final = 1 << 20
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,64}")
_tokens_lock: Final = threading.Lock()
_known_tokens: dict[tuple[str, str, str, str], tuple[str, float]] = {}
"""A token and until when it is used, by endpoint, client, secret and scope."""


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
    given = (config.password, config.token, config.client_secret)
    secrets = [secret.get_secret_value() for secret in given if secret]
    if any(secret and secret in said for secret in secrets):
        said = code_name(answer.error_code)
    return AccessDeniedError(
        f"the broker refuses the login by {config.mechanism}: {said}",
        operation=_LOG_IN,
        object_name=broker,
        hint="check kafka.sasl: mechanism, username and password, token, or client",
    )


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


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc] # kafka-python is untyped
    """The configured token, or one from the token endpoint."""

    def __init__(self, config: SaslConfig) -> None:
        super().__init__()
        self._config = config

    def token(self) -> str:
        if self._config.token is not None:
            return self._config.token.get_secret_value()
        return token_of(self._config)

    def extensions(self) -> dict[str, str]:
        return dict(self._config.extensions)


def token_of(config: SaslConfig) -> str:
    """A token that is valid for a while."""
    endpoint, client = config.token_endpoint or "", config.client_id or ""
    secret = config.client_secret.get_secret_value() if config.client_secret else ""
    key = (endpoint, client, secret, config.scope or "")
    with _tokens_lock:
        known = _known_tokens.get(key)
        if known is None or time.monotonic() >= known[1]:
            known = _known_tokens[key] = _ask_token(endpoint, client, secret, config.scope)
        return known[0]


def forget_tokens() -> None:
    """A broker has refused one, which may have been revoked."""
    with _tokens_lock:
        _known_tokens.clear()


def _ask_token(endpoint: str, client: str, secret: str, scope: str | None) -> tuple[str, float]:
    form = {"grant_type": "client_credentials", **({} if scope is None else {"scope": scope})}
    # RFC 6749, 2.3.1: both are form-encoded before they become basic authentication.
    pair = f"{urllib.parse.quote(client, safe='')}:{urllib.parse.quote(secret, safe='')}"
    request = urllib.request.Request(  # noqa: S310 - the configuration allows https, and http on loopback
        endpoint,
        data=urllib.parse.urlencode(form).encode(),
        headers={
            "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
            "Accept": "application/json",
        },
    )
    asked_at_s = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as above
            document = _document(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise _refused_token(endpoint, error) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UnavailableError(
            f"the token endpoint does not answer: {type(reason).__name__}",
            operation=_FETCH,
            object_name=endpoint,
            hint="check kafka.sasl.token_endpoint, and whether this machine reaches it",
        ) from None
    token = document.get("access_token")
    if not isinstance(token, str) or not token:
        raise UsageError("the token endpoint answered without an access_token", operation=_FETCH, object_name=endpoint)
    lifetime = document.get("expires_in")
    lifetime_s = float(lifetime) if isinstance(lifetime, int | float) and lifetime > 0 else _LIFETIME_S
    return token, asked_at_s + lifetime_s * _USED


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        found = strict_json.parse(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refused_token(endpoint: str, error: urllib.error.HTTPError) -> AccessDeniedError | UnavailableError:
    code = _document(error.read(_ANSWER_BYTES_MAX)).get("error")
    said = f" ({code})" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
    message = f"the token endpoint answered {error.code}{said}"
    if error.code >= http.client.INTERNAL_SERVER_ERROR or error.code == http.client.TOO_MANY_REQUESTS:
        return UnavailableError(message, operation=_FETCH, object_name=endpoint, hint="try again")
    return AccessDeniedError(
        message,
        operation=_FETCH,
        object_name=endpoint,
        hint="check client_id, client_secret and scope in kafka.sasl",
    )


def msk_message(host: str, region: str | None) -> bytes:
    """The signed message of AWS_MSK_IAM for a broker, with the credentials that this process finds."""
    access_key, secret_key, token, region = _aws(region)
    signed = AwsMskIamClient(host=host, access_key=access_key, secret_key=secret_key, region=region, token=token)
    return bytes(signed.first_message())


def _aws(region: str | None) -> tuple[str, str, str | None, str]:
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None:
        raise UsageError("AWS_MSK_IAM needs the region", operation="log in", hint="set kafka.sasl.region or AWS_REGION")
    try:
        from botocore.session import Session  # noqa: PLC0415 - an extra
    except ImportError:
        key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        if key is None or secret is None:
            raise EnvironmentMissingError(
                "AWS_MSK_IAM needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the package botocore for profiles "
                "and roles",
                operation="log in",
                hint="set them, or pip install botocore",
            ) from None
        return key, secret, os.environ.get("AWS_SESSION_TOKEN"), region
    found = Session().get_credentials()
    if found is None:
        raise AccessDeniedError("no AWS credentials were found for AWS_MSK_IAM", operation="log in")
    frozen = found.get_frozen_credentials()
    return frozen.access_key, frozen.secret_key, frozen.token, region

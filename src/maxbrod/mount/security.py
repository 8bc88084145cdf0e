"""Who a client is: TLS of the listener, and the server's side of SASL on each connection.

A `LoginSession` belongs to one connection. It answers SaslHandshake and SaslAuthenticate, or raw tokens after a
handshake of version 0, and knows the principal. A session without an identity is not authenticated, whatever was
exchanged. Failed logins are answered a little late, and no answer or log line has a secret or tells whether a user
exists.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import secrets
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from kafka.protocol.api_key import ApiKey
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from maxbrod.errors import UsageError
from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.mount.tokens import TokenRefusedError, TokenRules
from maxbrod.mount.users import SCRAM_DIGESTS, ScramVerifier, Users
from maxbrod.private_files import refuse_readable_key

_LOG: Final = logging.getLogger(__name__)
KEYS: Final[Mapping[int, tuple[int, int]]] = {ApiKey.SaslHandshake: (0, 1), ApiKey.SaslAuthenticate: (0, 2)}
ANONYMOUS: Final = "User:ANONYMOUS"
_PLAIN: Final = "PLAIN"
_OAUTHBEARER: Final = "OAUTHBEARER"
_DELAY_S: Final = 0.2
_MESSAGE_BYTES_MAX: Final = 128 << 10
_NONCE_BYTES: Final = 24
_REFUSED: Final = "the login is refused"
_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
}


class LoginRefusedError(ValueError):
    """Why a login failed: for the log, not for the client. Has no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of the listener. With `client_ca`, clients must have a certificate that it signed."""

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None


def ssl_context(files: TlsFiles) -> ssl.SSLContext:
    """The TLS of the listener, from version 1.2 on. UsageError, RefusedError: a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    path = files.key or files.certificate
    try:
        refuse_readable_key(path, path.stat())
        path = files.certificate
        # Without a password OpenSSL would prompt at the terminal and wait.
        context.load_cert_chain(files.certificate, files.key, password="")
        if files.client_ca is not None:
            path = files.client_ca
            context.load_verify_locations(path)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "it is not usable PEM"
        raise UsageError(
            f"a file of the listener's TLS cannot be used: {reason}",
            object_name=str(path),
            hint="PEM files are needed: the certificate with its chain, and its key without a password",
        ) from None
    return context


def tls_principal(certificate: Mapping[str, Any] | None) -> str | None:
    """The subject of a client's certificate as Kafka writes it; None without a certificate or a subject."""
    subject: Sequence[Sequence[tuple[str, str]]] = (certificate or {}).get("subject", ())
    # Of several names in one level, and of the levels, the most specific comes first (RFC 2253).
    parts = ["+".join(f"{_NAMES.get(name, name)}={_escaped(value)}" for name, value in level) for level in subject]
    return f"User:{','.join(reversed(parts))}" if parts else None


def _escaped(value: str) -> str:
    escaped = "".join(f"\\{letter}" if letter in ',+"\\<>;=' else letter for letter in value)
    return f"\\{escaped}" if escaped.startswith(("#", " ")) else escaped


@dataclass(frozen=True, slots=True, kw_only=True)
class Logins:
    """How clients log in. Without users and tokens there is no SASL."""

    users: Users | None = None
    tokens: TokenRules | None = None
    plain: bool = True
    """Offer PLAIN to users. It shows the password to whoever reads the connection, so it wants TLS."""
    lifetime_ms: int = 0
    """How long a login lasts until the client must repeat it; 0: as long as the connection, or as its token."""
    delay_s: float = _DELAY_S

    @property
    def mechanisms(self) -> tuple[str, ...]:
        users, tokens = self.users, self.tokens
        return (
            *(() if users is None else users.mechanisms),
            *((_PLAIN,) if users is not None and self.plain else ()),
            *((_OAUTHBEARER,) if tokens is not None else ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginStep:
    """One answer of a mechanism. `user` is set when the exchange has ended well."""

    answer: bytes = b""
    user: str | None = None
    expires_at_s: float | None = None
    """When the credentials expire, by the clock of the wall."""


class LoginExchange(Protocol):
    """The server's side of one mechanism. LoginRefusedError ends it."""

    def step(self, message: bytes) -> LoginStep: ...


class LoginSession:
    """The login of one connection. `certified` is the principal of a client's certificate, if it has shown one."""

    def __init__(
        self,
        logins: Logins,
        *,
        certified: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._logins, self._clock, self._wall = logins, clock, wall
        # Where SASL is offered, a certificate alone is no login, as with Kafka's SASL_SSL.
        self._principal = None if logins.mechanisms else certified or ANONYMOUS
        self._mechanism: str | None = None
        self._exchange: LoginExchange | None = None
        self._expires_at_s: float | None = None
        self.expects_raw = False
        """True if the next frame is a bare token, after a handshake of version 0."""
        self.failed = False
        """True if the connection must be closed after the answer."""

    @property
    def is_authenticated(self) -> bool:
        return self._principal is not None and not self.failed

    @property
    def principal(self) -> str | None:
        """The principal, such as `User:alice`; None before the login."""
        return None if self.failed else self._principal

    def expired(self, now_s: float | None = None) -> bool:
        """True if the client should have logged in again. `now_s` is of the session's clock."""
        return self._expires_at_s is not None and (self._clock() if now_s is None else now_s) >= self._expires_at_s

    async def handle(self, request: Message, version: int) -> Message:
        """The answer to SaslHandshake or SaslAuthenticate."""
        if ApiKey.SaslHandshake == request.API_KEY:
            return self._shake_hands(request.mechanism, version)
        if self._exchange is None:
            self.failed = True
            return SaslAuthenticateResponse(
                version=version,
                error_code=Code.ILLEGAL_SASL_STATE,
                error_message="a SaslHandshake must come first",
                auth_bytes=b"",
            )
        answer, lifetime_ms = await self._step(bytes(request.auth_bytes))
        if answer is None:
            return SaslAuthenticateResponse(
                version=version, error_code=Code.SASL_AUTHENTICATION_FAILED, error_message=_REFUSED, auth_bytes=b""
            )
        return SaslAuthenticateResponse(
            version=version,
            error_code=Code.NONE,
            error_message=None,
            auth_bytes=answer,
            session_lifetime_ms=lifetime_ms,
        )

    async def handle_raw(self, token: bytes) -> bytes | None:
        """The answer to a bare token. None: the login has failed, and only the end of the connection says so."""
        return (await self._step(token))[0]

    def _shake_hands(self, mechanism: str, version: int) -> Message:
        offered = self._logins.mechanisms
        # Whoever logs in again must do so by the same mechanism.
        if self._mechanism is not None and self._principal is not None:
            offered = (self._mechanism,)
        self._exchange, self.expects_raw = None, False
        code = Code.NONE
        if not offered:
            code = Code.ILLEGAL_SASL_STATE
        elif mechanism not in offered:
            code = Code.UNSUPPORTED_SASL_MECHANISM
        else:
            self._mechanism, self._exchange = mechanism, self._begin(mechanism)
            self.expects_raw = version == 0
        return SaslHandshakeResponse(version=version, error_code=code, mechanisms=list(offered))

    def _begin(self, mechanism: str) -> LoginExchange:
        users, tokens = self._logins.users, self._logins.tokens
        if mechanism == _OAUTHBEARER and tokens is not None:
            return BearerExchange(tokens, self._wall)
        if users is None:
            raise ValueError(f"{mechanism} is not offered")
        return PlainExchange(users) if mechanism == _PLAIN else ScramExchange(users, mechanism)

    async def _step(self, message: bytes) -> tuple[bytes | None, int]:
        """The mechanism's answer, None if the login failed; and how long the login lasts, in ms."""
        try:
            if self._exchange is None or len(message) > _MESSAGE_BYTES_MAX:
                raise LoginRefusedError("the message is too long, or none was expected")
            # Deriving a key from a password takes milliseconds, in which others are served.
            step = await asyncio.to_thread(self._exchange.step, message)
            if step.user is None:
                return step.answer, 0
            return step.answer, self._log_in(f"User:{step.user}", step.expires_at_s)
        except LoginRefusedError as error:
            self.failed, self._exchange, self.expects_raw = True, None, False
            _LOG.warning("a login by %s failed: %s", self._mechanism, error)
            await asyncio.sleep(self._logins.delay_s)
            return None, 0

    def _log_in(self, principal: str, expires_at_s: float | None) -> int:
        if self._principal is not None and principal != self._principal:
            raise LoginRefusedError("a login on this connection was of another user")
        lifetimes = [self._logins.lifetime_ms] if self._logins.lifetime_ms else []
        if expires_at_s is not None:
            # Whoever must return before it expires gets at least a millisecond: 0 would mean for ever.
            lifetimes.append(max(1, int((expires_at_s - self._wall()) * 1000)))
        lifetime_ms = min(lifetimes, default=0)
        self._principal, self._exchange, self.expects_raw = principal, None, False
        self._expires_at_s = self._clock() + lifetime_ms / 1000 if lifetime_ms else None
        return lifetime_ms


class PlainExchange:
    """RFC 4616: another identity to act as, user, password, separated by zero bytes."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def step(self, message: bytes) -> LoginStep:
        try:
            acting, name, password = message.decode().split("\0")
        except ValueError:
            raise LoginRefusedError("the message is not of PLAIN") from None
        if acting not in {"", name} or not name or not self._users.accepts(name, password):
            raise LoginRefusedError("the user or the password is wrong")
        return LoginStep(user=name)


class ScramExchange:
    """The server's side of RFC 5802, without channel binding."""

    def __init__(self, users: Users, mechanism: str) -> None:
        self._users, self._mechanism = users, mechanism
        self._digest: Final = SCRAM_DIGESTS[mechanism]
        self._verifier: ScramVerifier | None = None
        self._name = self._nonce = self._bare = self._first = ""
        self._header = b""

    def step(self, message: bytes) -> LoginStep:
        try:
            text = message.decode()
            return self._begin(text) if self._verifier is None else self._finish(text, self._verifier)
        except (UnicodeDecodeError, binascii.Error, KeyError) as error:
            raise LoginRefusedError(f"the message is not of {self._mechanism}: {type(error).__name__}") from None

    def _begin(self, text: str) -> LoginStep:
        binding, acting, bare = text.split(",", 2) if text.count(",") >= 2 else ("", "", "")
        # `y`: the client could bind to a TLS channel, and believes rightly that this server cannot.
        if binding not in {"n", "y"}:
            raise LoginRefusedError("the client wants channel binding, or sent no header")
        fields = _fields(bare)
        name = _unescaped(fields["n"])
        if acting not in {"", f"a={fields['n']}"} or not name or not fields["r"] or "m" in fields:
            raise LoginRefusedError("the client asks for something that is not supported")
        verifier = self._users.verifier(name, self._mechanism)
        self._name, self._bare, self._header = name, bare, f"{binding},{acting},".encode()
        self._nonce = fields["r"] + base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        salt = base64.b64encode(verifier.salt).decode()
        self._first = f"r={self._nonce},s={salt},i={verifier.iterations}"
        self._verifier = verifier
        return LoginStep(answer=self._first.encode())

    def _finish(self, text: str, verifier: ScramVerifier) -> LoginStep:
        fields = _fields(text)
        unproven, _, _ = text.rpartition(",p=")
        bound = base64.b64decode(fields["c"], validate=True)
        proof = base64.b64decode(fields["p"], validate=True)
        signed = f"{self._bare},{self._first},{unproven}".encode()
        signature = hmac.digest(verifier.stored_key, signed, self._digest)
        if bound != self._header or fields["r"] != self._nonce or len(proof) != len(signature):
            raise LoginRefusedError("the proof is about another exchange")
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._digest, client_key).digest(), verifier.stored_key):
            raise LoginRefusedError("the user or the password is wrong")
        shown = base64.b64encode(hmac.digest(verifier.server_key, signed, self._digest)).decode()
        return LoginStep(answer=f"v={shown}".encode(), user=self._name)


class BearerExchange:
    """RFC 7628: a token in one message."""

    def __init__(self, tokens: TokenRules, wall: Callable[[], float]) -> None:
        self._tokens, self._wall = tokens, wall

    def step(self, message: bytes) -> LoginStep:
        header, *pairs = message.decode(errors="replace").split("\1")
        values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        scheme, _, token = values.get("auth", "").partition(" ")
        if not header.startswith(("n,", "y,")) or scheme.lower() != "bearer":
            raise LoginRefusedError("the message is not of OAUTHBEARER")
        try:
            found = self._tokens.check(token.strip(), self._wall())
        except TokenRefusedError as error:
            raise LoginRefusedError(f"the token is refused: {error}") from None
        acting = next((part[2:] for part in header.split(",") if part.startswith("a=")), "")
        if acting not in {"", found.principal}:
            raise LoginRefusedError("the token is of another user than the client says")
        return LoginStep(user=found.principal, expires_at_s=found.expires_at_s)


def _fields(text: str) -> dict[str, str]:
    """The attributes of a SCRAM message, of which each has one letter. KeyError: one is missing."""
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _unescaped(name: str) -> str:
    rest = name.replace("=2C", "").replace("=3D", "")
    if "=" in rest:
        raise LoginRefusedError("the user's name is not escaped as it should be")
    return name.replace("=2C", ",").replace("=3D", "=")

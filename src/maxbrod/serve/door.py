"""Who may come in: requests that name this server, from no other site's pages, and with the token.

Every answer says that a browser may load nothing for it but this server's own style and script, and that no other page
may frame it. What is refused is counted, and no token is ever logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from maxbrod.cli.health import host_name, is_loopback, is_named
from maxbrod.errors import RefusedError, UsageError
from maxbrod.private_files import refuse_readable_key

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from maxbrod.serve.options import ServeOptions

TOKEN: Final = "token"  # noqa: S105 - the name of a parameter
LOGIN: Final = "/login"
HEALTH: Final = "/healthz"
STATIC: Final = "/static/"
_TOKEN_LETTERS_MIN: Final = 16
_TOKEN_BYTES_MAX: Final = 4096
WRONG_S: Final = 0.5
"""How long a wrong token waits for its answer."""
_SESSION: Final = b"maxbrod dashboard, session"
_CSP: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SAFETY: Final = (
    ("content-security-policy", _CSP),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
)
"""Headers of every answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """How the dashboard is reached, and by whom."""

    host: str
    port: int
    token: str | None = field(repr=False)
    """None: everybody who reaches it may look."""
    generated: bool = False
    """True if nobody knows the token but who is told now."""
    tls: bool = False
    names: tuple[str, ...] = ()

    @property
    def cookie(self) -> str:
        """The name of the session's cookie. Cookies do not know ports, so the name does."""
        return f"maxbrod-{self.port}"

    @property
    def session(self) -> str:
        """What the cookie holds: it proves that the token was known, and is not the token."""
        return hmac.new((self.token or "").encode(), _SESSION, hashlib.sha256).hexdigest()

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}/"

    def is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def is_session(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.session.encode())


def parse_address(listen: str) -> tuple[str, int]:
    """The address and the port. UsageError: that is no address."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if is_loopback(host) is None or not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            f"{listen!r} is not an address with a port", hint="give one such as 127.0.0.1:8321 or [::1]:8321"
        )
    return host, int(port)


def read_token(path: Path) -> str:
    """UsageError, RefusedError: the file cannot be read, others can read it, or its token can be guessed."""
    try:
        refuse_readable_key(path, path.stat())
        with path.open("rb") as file:
            data = file.read(_TOKEN_BYTES_MAX)
        token = data.decode("ascii").strip()
    except OSError as error:
        raise UsageError(f"the token cannot be read: {error.strerror}", object_name=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("the token must consist of ASCII letters", object_name=str(path)) from None
    if len(token) < _TOKEN_LETTERS_MIN or not token.isprintable() or " " in token:
        raise UsageError(
            f"a token has at least {_TOKEN_LETTERS_MIN} letters and no space",
            object_name=str(path),
            hint=f"python3 -c 'import secrets; print(secrets.token_urlsafe())' > {path}",
        )
    return token


def entrance_of(options: ServeOptions, port: int) -> Entrance:
    """The entrance that the options ask for, with the port that is really used.

    RefusedError: strangers could read the archives, or the token on its way.
    """
    host, _ = parse_address(options.listen)
    if options.tls_cert is None and options.tls_key is not None:
        raise UsageError("--tls-key needs --tls-cert", hint="see 'maxbrod serve --help'")
    if not options.token and options.token_file is not None:
        raise UsageError("--no-token and --token-file exclude each other")
    if is_loopback(host) is not True:
        if not options.token:
            raise RefusedError(
                f"everybody who reaches {host} could read the archives",
                object_name=options.listen,
                hint="listen on 127.0.0.1, or leave out --no-token",
            )
        if options.tls_cert is None:
            raise RefusedError(
                "whoever reads the network could read the archives and the token",
                object_name=options.listen,
                hint="encrypt connections with --tls-cert; or listen on 127.0.0.1, behind a proxy that does",
            )
    token = None
    if options.token:
        token = secrets.token_urlsafe(32) if options.token_file is None else read_token(options.token_file)
    return Entrance(
        host=host,
        port=port,
        token=token,
        generated=options.token and options.token_file is None,
        tls=options.tls_cert is not None,
        names=options.names,
    )


@dataclass(slots=True)
class Guard:
    """Lets requests in, or refuses them: an ASGI application around the dashboard."""

    app: ASGIApp
    entrance: Entrance
    wrong_s: float = WRONG_S
    requests: int = 0
    refused: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return
        self.requests += 1
        guarded = _safely(send, cached=scope["path"].startswith(STATIC))
        answer = self._refusal(scope)
        if answer is not None:
            self.refused += 1
            await answer(scope, receive, guarded)
            return
        answer = await self._token_in_address(scope)
        if answer is not None:
            await answer(scope, receive, guarded)
            return
        if not self._is_known(scope):
            self.refused += 1
            scope["state"] = {**scope.get("state", {}), "stranger": True}
            scope["path"], scope["raw_path"], scope["query_string"] = LOGIN, LOGIN.encode(), b""
            scope["method"] = "GET"
        await self.app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """What is wrong with a request, whoever sends it."""
        host = header(scope, b"host")
        if host is None or not is_named(host_name(host), self.entrance.host, self.entrance.names):
            return PlainTextResponse("this is not the server of that name; see --name\n", 421)
        allowed = {"GET", "HEAD", "POST"} if scope["path"] == LOGIN else {"GET", "HEAD"}
        if scope["method"] not in allowed:
            return PlainTextResponse("this dashboard changes nothing\n", 405, {"allow": ", ".join(sorted(allowed))})
        origin = header(scope, b"origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.strip().lower():
            return PlainTextResponse("requests of other sites are refused\n", 403)
        # Browsers say who asks: links of other sites may lead here, but their pages may load or frame nothing.
        site, mode, wanted = (header(scope, name) for name in (b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"))
        if site in {"cross-site", "same-site"} and not (mode == "navigate" and wanted == "document"):
            return PlainTextResponse("requests of other sites are refused\n", 403)
        return None

    async def _token_in_address(self, scope: Scope) -> Response | None:
        """The address that was printed at the start has the token once: it becomes a cookie, and leaves the address."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in pairs if name == TOKEN), None)
        if given is None or self.entrance.token is None or scope["path"] == LOGIN:
            return None
        if not self.entrance.is_token(given):
            await asyncio.sleep(self.wrong_s)
            return None
        rest = urlencode([pair for pair in pairs if pair[0] != TOKEN])
        path = "/" + scope["path"].lstrip("/\\")
        return self.welcome(scope, f"{path}?{rest}" if rest else path)

    def welcome(self, scope: Scope, where: str) -> Response:
        """Let in whoever has shown the token."""
        answer = RedirectResponse(where, 303)
        # A proxy that ends TLS says so; if a client does, its own cookie is only safer.
        secure = self.entrance.tls or header(scope, b"x-forwarded-proto") == "https"
        answer.set_cookie(
            self.entrance.cookie, self.entrance.session, path="/", httponly=True, samesite="lax", secure=secure
        )
        return answer

    def _is_known(self, scope: Scope) -> bool:
        path = scope["path"]
        if self.entrance.token is None or path in {LOGIN, HEALTH} or path.startswith(STATIC):
            return True
        bearer = header(scope, b"authorization")
        if bearer is not None and bearer.lower().startswith("bearer "):
            return self.entrance.is_token(bearer[7:].strip())
        return any(self.entrance.is_session(value) for value in cookies(scope, self.entrance.cookie))


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header; None: there is none, or several, of which nobody knows which counts."""
    found = [value for known, value in scope["headers"] if known == name]
    return found[0].decode("latin-1") if len(found) == 1 else None


def cookies(scope: Scope, name: str) -> Iterable[str]:
    for known, value in scope["headers"]:
        if known == b"cookie":
            try:
                found = SimpleCookie(value.decode("latin-1"))
            except CookieError:
                continue
            if name in found:
                yield found[name].value


def _safely(send: Send, *, cached: bool) -> Send:
    """Send with the headers that keep a browser from doing anything but showing the page."""

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra: Collection[tuple[str, str]] = (
                *SAFETY,
                # Records are nobody's business once the window is closed.
                ("cache-control", "private, max-age=3600" if cached else "no-store"),
            )
            message["headers"] = [
                *message.get("headers", ()),
                *((name.encode(), value.encode()) for name, value in extra),
            ]
        await send(message)

    return guarded

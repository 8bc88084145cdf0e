"""Speaks to a schema registry: requests and answers in JSON, log-in, TLS, retries within a deadline.

No answer, error or log of this module has a secret in it: errors name the URL, which never contains one, the path and
the registry's own message.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlencode, urlsplit

from maxbrod import strict_json
from maxbrod.config import RegistryConfig
from maxbrod.errors import AccessDeniedError, CorruptDataError, MaxbrodError, RefusedError, UnavailableError, UsageError

_OPERATION: Final = "speak to the schema registry"
_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_REQUEST_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.2
_PAUSE_S_MAX: Final = 5.0
_BODY_BYTES_MAX: Final = 256 << 20
_MESSAGE_MAX: Final = 300
_LATER: Final = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
_UNKNOWN: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAnswer:
    """The status of a request, the registry's own error code, and the body as JSON."""

    status: int
    body: Any

    @property
    def fine(self) -> bool:
        return self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def absent(self) -> bool:
        """True if the registry does not have the thing, or does not know the request."""
        return self.status in _UNKNOWN

    @property
    def message(self) -> str:
        told = self.body.get("message") if isinstance(self.body, dict) else None
        return str(told or http.client.responses.get(self.status, "unknown status"))[:_MESSAGE_MAX]

    @property
    def code(self) -> int:
        found = self.body.get("error_code") if isinstance(self.body, dict) else None
        return found if isinstance(found, int) else self.status


class RegistryClient:
    """One registry, at one or several URLs. Any thread may use it; each has a connection of its own."""

    def __init__(self, urls: Sequence[str], config: RegistryConfig, *, patience_s: float) -> None:
        self._urls, self._config, self._patience_s = tuple(urls), config, patience_s
        self._headers = {"Accept": f"{_CONTENT}, application/json", "User-Agent": "maxbrod", **_login(config)}
        self._context = _tls(config) if any(url.startswith("https") for url in urls) else None
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: list[http.client.HTTPConnection] = []
        self._first = 0

    @property
    def url(self) -> str:
        """The URLs, for people."""
        return ",".join(self._urls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            for connection in self._opened:
                connection.close()
            self._opened.clear()

    def get(self, *path: str, **query: str | int) -> Any:  # noqa: ANN401 - JSON
        """The body of an answer. MaxbrodError: the registry refuses, or does not have it."""
        return self._demand("GET", path, self.ask("GET", *path, query=query))

    def find(self, *path: str, **query: str | int) -> Any:  # noqa: ANN401 - JSON
        """The body of an answer; None: the registry does not have it, or does not know the request."""
        answer = self.ask("GET", *path, query=query)
        return None if answer.absent else self._demand("GET", path, answer)

    def send(self, method: str, *path: str, body: Mapping[str, Any] | None = None, **query: str | int) -> Any:  # noqa: ANN401 - JSON
        """The body of the answer to a change. MaxbrodError: the registry refuses it."""
        return self._demand(method, path, self.ask(method, *path, body=body, query=query))

    def ask(
        self,
        method: str,
        *path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str | int] | None = None,
    ) -> RegistryAnswer:
        """The answer, whatever it says. UnavailableError: none comes in time. AccessDeniedError: it is 401 or 403.

        Every request that is sent here may be repeated: the same registration, mode or deletion again has no effect.
        """
        until = time.monotonic() + self._patience_s
        pause_s = _PAUSE_S
        while True:
            why: str
            try:
                answer = self._once(method, path, body, query or {})
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise self._untrusted(error) from None
                why = _cause(error)
                self._first += 1
            else:
                if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                    raise self._denied(method, path, answer)
                if answer.status not in _LATER:
                    return answer
                why = f"{answer.status} {answer.message}"
            if time.monotonic() + pause_s > until:
                raise UnavailableError(
                    f"the schema registry does not answer: {why}",
                    operation=_OPERATION,
                    object_name=self.url,
                    hint="check the URL, and that the registry is up and reachable from here",
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _once(
        self, method: str, path: Sequence[str], body: Mapping[str, Any] | None, query: Mapping[str, str | int]
    ) -> RegistryAnswer:
        base = urlsplit(self._urls[self._first % len(self._urls)])
        target = base.path.rstrip("/") + "/" + "/".join(quote(part, safe="") for part in path)
        target += f"?{urlencode(query)}" if query else ""
        connection = self._connection(base.scheme, base.hostname or "", base.port)
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers if data is None else {**self._headers, "Content-Type": _CONTENT}
        try:
            connection.request(method, target, body=data, headers=headers)
            answer = connection.getresponse()
            text = answer.read(_BODY_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        if len(text) > _BODY_BYTES_MAX:
            connection.close()
            raise RefusedError("an answer of the schema registry is too large", object_name=self.url)
        return RegistryAnswer(status=answer.status, body=_parse(text, fine=answer.status < HTTPStatus.MULTIPLE_CHOICES))

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        kept: dict[tuple[str, str, int | None], http.client.HTTPConnection] = self._local.__dict__.setdefault(
            "kept", {}
        )
        place = scheme, host, port
        if place not in kept:
            if scheme == "https":
                made: http.client.HTTPConnection = http.client.HTTPSConnection(
                    host, port, timeout=self._timeout_s, context=self._context
                )
            else:
                made = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
            kept[place] = made
            with self._lock:
                self._opened.append(made)
        return kept[place]

    @property
    def _timeout_s(self) -> float:
        return min(_REQUEST_TIMEOUT_S, max(self._patience_s, 1.0))

    def _demand(self, method: str, path: Sequence[str], answer: RegistryAnswer) -> Any:  # noqa: ANN401 - JSON
        if answer.fine:
            return answer.body
        kind = UnavailableError if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR else RefusedError
        raise kind(
            f"the schema registry refuses {method} /{'/'.join(path)}: {answer.code} {answer.message}",
            operation=_OPERATION,
            object_name=self.url,
        )

    def _denied(self, method: str, path: Sequence[str], answer: RegistryAnswer) -> MaxbrodError:
        return AccessDeniedError(
            f"the schema registry does not allow {method} /{'/'.join(path)}: {answer.status} {answer.message}",
            operation=_OPERATION,
            object_name=self.url,
            hint="give username and password, a token or a certificate in the section 'registry' of the configuration",
        )

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> MaxbrodError:
        return AccessDeniedError(
            f"the certificate of the schema registry is not trusted: {error.verify_message}",
            operation=_OPERATION,
            object_name=self.url,
            hint="name its authority in registry.tls.ca_file of the configuration",
        )


def _parse(text: bytes, *, fine: bool) -> Any:  # noqa: ANN401 - JSON
    if not text:
        return None
    try:
        return strict_json.parse(text, wide=True)
    except ValueError as error:
        if fine:
            raise CorruptDataError(
                f"an answer of the schema registry is no JSON: {error}",
                operation=_OPERATION,
                hint="check the URL: something else may answer there",
            ) from error
        return None  # an error page of a proxy


def _cause(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(reason)[:_MESSAGE_MAX]


def _login(config: RegistryConfig) -> dict[str, str]:
    if config.token is not None:
        return {"Authorization": f"Bearer {config.token.get_secret_value()}"}
    if config.username is not None and config.password is not None:
        both = f"{config.username}:{config.password.get_secret_value()}".encode()
        return {"Authorization": f"Basic {base64.b64encode(both).decode()}"}
    return {}


def _tls(config: RegistryConfig) -> ssl.SSLContext:
    tls = config.tls
    try:
        context = ssl.create_default_context(cafile=None if tls.ca_file is None else str(tls.ca_file))
        context.check_hostname = tls.check_hostname
        if tls.certificate_file is not None:
            password = None if tls.key_password is None else tls.key_password.get_secret_value()
            context.load_cert_chain(tls.certificate_file, tls.key_file, lambda: password or "")
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"a TLS file of the schema registry cannot be read: {_cause(error)}",
            hint="registry.tls of the configuration has ca_file, certificate_file and key_file in PEM form",
        ) from None
    return context

"""Tokens for OAUTHBEARER from an OAuth 2 token endpoint (client credentials, RFC 6749 4.4), and MSK's IAM log-in.

A token serves all connections of a process until shortly before it expires. No error shows a secret, a token, or what
the endpoint said beyond its error code.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka.net.sasl.msk import AwsMskIamClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from maxbrod import strict_json
from maxbrod.errors import AccessDeniedError, EnvironmentMissingError, UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.config import SaslConfig

_OPERATION: Final = "get a token"
_TIMEOUT_S: Final = 30.0
_LIFETIME_S: Final = 300.0
"""Assumed where the endpoint does not say it."""
_USED: Final = 0.8
"""The part of its lifetime after which a token is replaced."""
_ANSWER_BYTES_MAX: Final = 1 << 20
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,64}")

_lock: Final = threading.Lock()
_known: dict[tuple[str, str, str, str], _Known] = {}


@dataclass(frozen=True, slots=True)
class _Known:
    token: str
    until_s: float


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
    with _lock:
        known = _known.get(key)
        if known is None or time.monotonic() >= known.until_s:
            known = _known[key] = _ask(endpoint, client, secret, config.scope)
        return known.token


def forget_tokens() -> None:
    """A broker has refused one, which may have been revoked."""
    with _lock:
        _known.clear()


def _ask(endpoint: str, client: str, secret: str, scope: str | None) -> _Known:
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
        raise _refused(endpoint, error) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UnavailableError(
            f"the token endpoint does not answer: {type(reason).__name__}",
            operation=_OPERATION,
            object_name=endpoint,
            hint="check kafka.sasl.token_endpoint, and whether this machine reaches it",
        ) from None
    token = document.get("access_token")
    if not isinstance(token, str) or not token:
        raise UsageError(
            "the token endpoint answered without an access_token", operation=_OPERATION, object_name=endpoint
        )
    lifetime = document.get("expires_in")
    lifetime_s = float(lifetime) if isinstance(lifetime, int | float) and lifetime > 0 else _LIFETIME_S
    return _Known(token, asked_at_s + lifetime_s * _USED)


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        found = strict_json.parse(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refused(endpoint: str, error: urllib.error.HTTPError) -> AccessDeniedError | UnavailableError:
    code = _document(error.read(_ANSWER_BYTES_MAX)).get("error")
    said = f" ({code})" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
    message = f"the token endpoint answered {error.code}{said}"
    if error.code >= http.client.INTERNAL_SERVER_ERROR or error.code == http.client.TOO_MANY_REQUESTS:
        return UnavailableError(message, operation=_OPERATION, object_name=endpoint, hint="try again")
    return AccessDeniedError(
        message,
        operation=_OPERATION,
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

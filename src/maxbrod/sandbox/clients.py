"""How a client logs in: the properties of a listener and user for kafka-python and for Java."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafka.net.sasl.oauth import AbstractTokenProvider

from maxbrod.sandbox.certificates import CA_FILE, user_file_stem
from maxbrod.sandbox.settings import PROTOCOLS, jaas_client
from maxbrod.sandbox.spec import SASL_PLAINTEXT, SASL_SSL, SSL

if TYPE_CHECKING:
    from pathlib import Path

_TOKEN_LIFE_S: Final = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user on a listener."""

    bootstrap: str
    listener: str
    user: str
    password: str = field(repr=False)
    mechanism: str
    tls_dir: Path

    @property
    def protocol(self) -> str:
        return PROTOCOLS[self.listener]

    @property
    def sasl(self) -> bool:
        return self.protocol in {SASL_PLAINTEXT, SASL_SSL}

    @property
    def tls(self) -> bool:
        return self.protocol in {SSL, SASL_SSL}

    @property
    def user_pem(self) -> str:
        return str(self.tls_dir / f"{user_file_stem(self.user)}.pem")

    @property
    def ca_pem(self) -> str:
        return str(self.tls_dir / CA_FILE)


def kafka_python_properties(login: Login) -> dict[str, Any]:
    properties: dict[str, Any] = {"bootstrap_servers": login.bootstrap, "security_protocol": login.protocol}
    if login.tls:
        properties["ssl_cafile"] = login.ca_pem
    if login.protocol == SSL:
        properties |= {"ssl_certfile": login.user_pem, "ssl_keyfile": login.user_pem}
    if login.sasl and login.mechanism == "OAUTHBEARER":
        properties |= {"sasl_mechanism": login.mechanism, "sasl_oauth_token_provider": UnsecuredToken(login.user)}
    elif login.sasl:
        properties |= {
            "sasl_mechanism": login.mechanism,
            "sasl_plain_username": login.user,
            "sasl_plain_password": login.password,
        }
    return properties


def java_properties(login: Login) -> dict[str, str]:
    properties = {"bootstrap.servers": login.bootstrap, "security.protocol": login.protocol}
    if login.tls:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": login.ca_pem}
    if login.protocol == SSL:
        properties |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": login.user_pem}
    if login.sasl:
        jaas = jaas_client(login.mechanism, login.user, login.password)
        properties |= {"sasl.mechanism": login.mechanism, "sasl.jaas.config": jaas}
    return properties


class UnsecuredToken(AbstractTokenProvider):  # type: ignore[misc] # kafka-python is untyped
    """An unsigned bearer token (RFC 7515, appendix A.5): the broker believes every claim."""

    def __init__(self, user: str) -> None:
        super().__init__()
        self._user = user

    def token(self) -> str:
        now = int(time.time())
        claims = {"sub": self._user, "iat": now, "exp": now + _TOKEN_LIFE_S}
        return f"{_base64url({'alg': 'none'})}.{_base64url(claims)}."


def _base64url(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()

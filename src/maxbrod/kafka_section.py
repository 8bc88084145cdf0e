"""The section of the configuration file about a cluster: how to reach it, and how to log in.

The properties of Kafka's own clients are accepted instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, SecretStr, ValidationError, model_validator

from maxbrod.java_properties import property_of, refused, translate
from maxbrod.sections import SectionModel, key

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]

_ENDPOINT: Final = re.compile(r"https://|http://(localhost|127\.0\.0\.1|\[::1\])[:/]")


class TlsConfig(SectionModel):
    """TLS files in PEM form."""

    ca_file: Path | None = key("Authorities to trust. By default those of the system.")
    certificate_file: Path | None = key("The client's certificate.")
    key_file: Path | None = key("The client's private key. Needs certificate_file.")
    key_password: SecretStr | None = key("The password of the private key.")
    check_hostname: bool = key("Compare the broker's host name with its certificate.", default=True)

    @model_validator(mode="after")
    def _key_and_certificate(self) -> TlsConfig:
        if self.key_file is not None and self.certificate_file is None:
            raise ValueError("key_file needs certificate_file")
        return self


class SaslConfig(SectionModel):
    """SASL credentials."""

    mechanism: SaslMechanism = Field(description="The SASL mechanism.")
    username: str | None = key("The user name, for PLAIN and SCRAM.")
    password: SecretStr | None = key("The password, for PLAIN and SCRAM.")
    token: SecretStr | None = key("A fixed token, for OAUTHBEARER. It is used until it expires.")
    token_endpoint: str | None = key("Where OAUTHBEARER gets tokens: https, or http on this machine.")
    client_id: str | None = key("The client at the token endpoint. Needs client_secret.")
    client_secret: SecretStr | None = key("The secret of the client.")
    scope: str | None = key("The scope to ask the token endpoint for.")
    extensions: dict[str, str] = Field(
        default_factory=dict, description="SASL extensions for OAUTHBEARER, such as logicalCluster and identityPoolId."
    )
    region: str | None = key("The region, for AWS_MSK_IAM. By default AWS_REGION.")

    @model_validator(mode="after")
    def _credentials(self) -> SaslConfig:
        if self.mechanism == "OAUTHBEARER":
            if (self.token is None) == (self.token_endpoint is None):
                raise ValueError("OAUTHBEARER needs token, or token_endpoint with client_id and client_secret")
        elif self.mechanism != "AWS_MSK_IAM" and (self.username is None or self.password is None):
            raise ValueError(f"{self.mechanism} needs username and password")
        if self.token_endpoint is not None and (self.client_id is None or self.client_secret is None):
            raise ValueError("token_endpoint needs client_id and client_secret")
        return self

    @model_validator(mode="after")
    def _endpoint(self) -> SaslConfig:
        # The request carries the client's secret.
        if self.token_endpoint is not None and not _ENDPOINT.match(self.token_endpoint):
            raise ValueError("token_endpoint must begin with https://, or be on this machine")
        return self


class KafkaConfig(SectionModel):
    """How to reach a cluster. The properties of Kafka's own clients are accepted instead."""

    bootstrap: str = Field(description="One or more brokers, separated by commas: host:port.")
    security_protocol: SecurityProtocol = key("The protocol of the listener.", default="PLAINTEXT")
    tls: TlsConfig = TlsConfig()
    sasl: SaslConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _java_properties(cls, values: object) -> object:
        # None of our keys contains a dot, and every client property that matters does.
        if isinstance(values, dict) and any("." in str(name) for name in values):
            return translate({str(name): "" if value is None else str(value) for name, value in values.items()})
        return values

    @model_validator(mode="after")
    def _sasl(self) -> KafkaConfig:
        if self.security_protocol.startswith("SASL") and self.sasl is None:
            raise ValueError(f"{self.security_protocol} needs a sasl section")
        if self.sasl is not None and self.sasl.mechanism == "AWS_MSK_IAM" and self.security_protocol != "SASL_SSL":
            raise ValueError("AWS_MSK_IAM needs SASL_SSL")
        return self


def from_java_properties(properties: Mapping[str, str]) -> KafkaConfig:
    """The connection that Kafka's own client properties describe. UsageError names the wrong property, and no value."""
    try:
        return KafkaConfig.model_validate(translate(properties))
    except ValidationError as error:
        found = error.errors(include_input=False)
        places = sorted({".".join(map(str, detail["loc"])) or "the whole" for detail in found})
        raise refused(property_of(places[0]), "is wrong") from None

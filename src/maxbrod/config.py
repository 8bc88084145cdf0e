"""The one YAML file that can say all that flags say: read, `${ENV}` filled in, checked.

Secrets are `SecretStr` from the moment they are read: no repr, error or dump shows them. A mistake in the file
is a UsageError that names the file and the setting, never its value.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator

from maxbrod.errors import UsageError, naming
from maxbrod.java_properties import property_of, refused, translate

if TYPE_CHECKING:
    from collections.abc import Mapping

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
S3StorageClass = Literal["STANDARD", "STANDARD_IA", "GLACIER_IR", "GLACIER"]
S3Encryption = Literal["AES256", "aws:kms", "aws:kms:dsse", "sse-c"]

_VARIABLE: Final = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})")


_BYTE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class _Settings(BaseModel):
    # An unknown name is a typing mistake, and a setting that is silently ignored is how backups go missing.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def parse_bytes(value: object) -> object:
    """`64MiB`, `2 GB`, or a plain number of bytes."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if found is None or found[2].lower() not in _BYTE_UNITS:
        raise ValueError("is not a number of bytes such as 64MiB")
    return int(float(found[1]) * _BYTE_UNITS[found[2].lower()])


def parse_seconds(value: object) -> object:
    """`500ms`, `60s`, `5m`, `1h30m`, or a plain number of seconds."""
    if not isinstance(value, str):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", value.strip().lower())
    if not parts or re.sub(r"\s", "", value.lower()) != "".join(number + unit for number, unit in parts):
        raise ValueError("is not a time such as 60s, 5m or 1h")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(ge=0)]


class TlsConfig(_Settings):
    """Files in PEM form. Without `ca_file` the system's own authorities are trusted."""

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: SecretStr | None = None
    check_hostname: bool = True

    @model_validator(mode="after")
    def _key_and_certificate(self) -> TlsConfig:
        if self.key_file is not None and self.certificate_file is None:
            raise ValueError("key_file needs certificate_file")
        return self


class SaslConfig(_Settings):
    mechanism: SaslMechanism
    username: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None

    @model_validator(mode="after")
    def _credentials(self) -> SaslConfig:
        if self.mechanism == "OAUTHBEARER" and self.token is None:
            raise ValueError("OAUTHBEARER needs token")
        if self.mechanism != "OAUTHBEARER" and (self.username is None or self.password is None):
            raise ValueError(f"{self.mechanism} needs username and password")
        return self


class KafkaConfig(_Settings):
    """How to reach a cluster. The file may have the properties of Kafka's own clients here instead."""

    bootstrap: str
    security_protocol: SecurityProtocol = "PLAINTEXT"
    tls: TlsConfig = TlsConfig()
    sasl: SaslConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _java_properties(cls, values: object) -> object:
        # None of our names has a dot, and every one of theirs that matters has.
        if isinstance(values, dict) and any("." in str(name) for name in values):
            return translate({str(name): "" if value is None else str(value) for name, value in values.items()})
        return values

    @model_validator(mode="after")
    def _sasl(self) -> KafkaConfig:
        if self.security_protocol.startswith("SASL") and self.sasl is None:
            raise ValueError(f"{self.security_protocol} needs a sasl section")
        return self


def from_java_properties(properties: Mapping[str, str]) -> KafkaConfig:
    """The connection of Kafka's own clients; UsageError names the property that is wrong, and no value."""
    try:
        return KafkaConfig.model_validate(translate(properties))
    except ValidationError as error:
        places = sorted({".".join(map(str, each["loc"])) or "the whole" for each in error.errors(include_input=False)})
        raise refused(property_of(places[0]), "is wrong") from None


class S3Config(_Settings):
    """For `s3://`. What is not said here comes from the usual `AWS_*` variables, or from the machine's role."""

    endpoint: str | None = None
    region: str | None = None
    path_style: bool = True
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None
    storage_class: S3StorageClass | None = None
    encryption: S3Encryption | None = None
    kms_key_id: str | None = None
    bucket_key: bool | None = None
    customer_key: SecretStr | None = None
    """SSE-C: 256 bits in base64. Whoever loses it loses the archive."""

    @model_validator(mode="before")
    @classmethod
    def _no_encryption_context(cls, values: object) -> object:
        if isinstance(values, dict) and "encryption_context" in values:
            raise ValueError("the S3 client cannot send an encryption context; use a KMS key that needs none")
        return values

    @model_validator(mode="after")
    def _keys(self) -> S3Config:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token needs access_key_id and secret_access_key")
        return self

    @model_validator(mode="after")
    def _encryption(self) -> S3Config:
        kms = self.encryption in {"aws:kms", "aws:kms:dsse"}
        if not kms and (self.kms_key_id is not None or self.bucket_key is not None):
            raise ValueError("kms_key_id and bucket_key need encryption aws:kms or aws:kms:dsse")
        if (self.encryption == "sse-c") != (self.customer_key is not None):
            raise ValueError("encryption sse-c and customer_key belong together")
        return self


class GcsConfig(_Settings):
    """For `gs://`. Without `credentials_file`: `GOOGLE_APPLICATION_CREDENTIALS`, or the machine's account."""

    credentials_file: Path | None = None


class AzureConfig(_Settings):
    """For `az://`. What is not said here comes from the usual `AZURE_*` variables, or from the machine's identity."""

    account: str | None = None
    account_key: SecretStr | None = None
    sas_token: SecretStr | None = None


class StorageConfig(_Settings):
    """How to reach the storage of an archive, beyond its URL, and how long to try."""

    s3: S3Config = S3Config()
    gcs: GcsConfig = GcsConfig()
    azure: AzureConfig = AzureConfig()
    shared: bool = False
    """In a directory: others may use what is written as far as the umask lets them, not this user alone."""
    ca_file: Path | None = None
    """Authorities in PEM form that are trusted besides the system's own."""
    request_timeout_s: float = Field(default=60.0, gt=0)
    """One request, from connecting to the last byte of its answer."""
    deadline_s: float = Field(default=180.0, ge=0)
    """One operation with all its retries; the request under way at that moment may still run into its timeout."""


class SparkConfig(_Settings):
    """Where the work runs: this machine by default."""

    master: str = "local[*]"
    conf: dict[str, str] = Field(default_factory=dict)


class BackupConfig(_Settings):
    """What a backup takes, from where on, and in which pieces it is written."""

    topics: tuple[str, ...] = ()
    """Names, globs, or regular expressions between slashes. None: every topic but internal ones."""
    exclude: tuple[str, ...] = ()
    internal: bool = False
    start: str | dict[str, dict[int, int]] = "earliest"
    """Of partitions that the archive does not know yet: earliest, latest, a time, or offsets by topic and partition."""
    compression: str = "auto"
    segment_bytes: Bytes = 256 << 20
    segment_records: int | None = Field(default=None, ge=1)
    exact_timestamps: bool = False
    """Look into every record for the lowest time of each segment, so that queries by time leave out more of them."""
    follow: bool = False
    every: Seconds = 60.0
    roll_bytes: Bytes | None = None
    roll_records: int | None = Field(default=None, ge=1)
    roll_age: Seconds = 0.0
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """For Prometheus, while it follows."""
    metrics_host: str = "127.0.0.1"
    single_writer: bool = False
    codec: str | None = None
    """In another tool's layout: the name of a codec, and perhaps a level behind a colon. None: as that tool does."""
    layout_options: dict[str, str] = Field(default_factory=dict)
    """What only that layout knows, such as a region or a backup id."""
    accept_loss: bool = False
    """Go on where that layout cannot hold everything."""
    patience: Seconds = 120.0
    """How long a broker may stay away before the partitions that it leads are given up for this run."""
    commit_bytes: Bytes = 16 << 30
    """A long run commits what it has each time it has read about this much."""

    @model_validator(mode="after")
    def _rolling(self) -> BackupConfig:
        if not self.roll_age and (self.roll_bytes is not None or self.roll_records is not None):
            raise ValueError("roll_bytes and roll_records need roll_age, which bounds how long anything waits")
        return self


class Config(_Settings):
    """A whole configuration file."""

    archive: str | None = None
    layout: str | None = None
    """Of the archive: kafka, which is our own, or kbak, kbs, binlog, avro, parquet. None: as it is found."""
    kafka: KafkaConfig | None = None
    storage: StorageConfig = StorageConfig()
    spark: SparkConfig = SparkConfig()
    backup: BackupConfig = BackupConfig()


def load_config(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read one file; UsageError says what is wrong and where."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the configuration cannot be read: {error.strerror}", object_name=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"the configuration is not YAML: {_where(error)}", object_name=str(path)) from None
    try:
        with naming(str(path)):
            return Config.model_validate(_expand(document if document is not None else {}, environ))
    except ValidationError as error:
        raise UsageError(f"the configuration is wrong: {complaints(error)}", object_name=str(path)) from None
    except KeyError as error:
        raise UsageError(
            f"the configuration needs the environment variable {error.args[0]}, which is not set",
            object_name=str(path),
            hint=f"set it, or write ${{{error.args[0]}:-a default}}; $$ stands for a plain $",
        ) from None


def _expand(node: Any, environ: Mapping[str, str]) -> Any:  # noqa: ANN401 - any YAML
    """Fill in variables after parsing, so that no value can change the structure of the document."""
    if isinstance(node, str):
        return _VARIABLE.sub(lambda match: _value(match, environ), node)
    if isinstance(node, dict):
        return {key: _expand(value, environ) for key, value in node.items()}
    if isinstance(node, list):
        return [_expand(value, environ) for value in node]
    return node


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    name = match["name"]
    if name is None:
        return "$"
    if name in environ:
        return environ[name]
    if match["default"] is None:
        raise KeyError(name)
    return match["default"]


def _where(error: Exception) -> str:
    # Only the place: a YAML error quotes the line it stumbled over, and that may hold a secret.
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "its text cannot be parsed"


def complaints(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, complaint['loc'])) or 'the file'}: {complaint['msg'].removeprefix('Value error, ')}"
        for complaint in error.errors(include_input=False, include_url=False, include_context=False)
    )


def kafka_config(
    base: KafkaConfig | None, given: KafkaConfig | Mapping[str, str] | None, bootstrap: str | None
) -> KafkaConfig | None:
    if given is not None and not isinstance(given, KafkaConfig):
        given = from_java_properties({**given, **({} if bootstrap is None else {"bootstrap.servers": bootstrap})})
    found = given or base
    if bootstrap is None:
        return found
    return KafkaConfig(bootstrap=bootstrap) if found is None else found.model_copy(update={"bootstrap": bootstrap})

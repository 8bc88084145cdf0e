"""The settings of a cloud's client: the options of the configuration, completed from the environment.

obstore reads the environment itself, so a setting that is omitted here is looked up there. What it does otherwise than
maxbrod promises is corrected here: the configuration comes before the environment, an endpoint with http:// needs no
further consent, and the names of the clouds' own tools are known.

For S3, `~/.aws` completes the configuration as well. A profile gives keys, a region and an endpoint. One that would
have to run a program, log in or take a role is refused by name: maxbrod does not do that, and must not go on as
somebody else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ParserError
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from maxbrod.config import AzureConfig, GcsConfig, S3Config, StorageConfig
from maxbrod.errors import UsageError
from maxbrod.storage.urls import Location

_DEFAULT: Final = "default"
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
# Whoever sets one of these has chosen where credentials come from.
_CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_UNSUPPORTED: Final = ("role_arn", "credential_process", "sso_session", "sso_start_url", "web_identity_token_file")

_GCS_ENDPOINTS: Final = ("GOOGLE_BASE_URL",)
# obstore prefers these to a credentials file.
_GCS_CREDENTIALS: Final = (
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "SERVICE_ACCOUNT",
)

_AZURE_ENDPOINTS: Final = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
# The first name is obstore's, the second that of Azure's own tools.
_AZURE_ACCOUNTS: Final = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_AZURE_KEYS: Final = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_KEY",
)


def settings_of(location: Location, options: StorageConfig) -> dict[str, Any]:
    """The settings of a cloud's client, with secrets in plain text; it looks up omitted ones itself."""
    if location.scheme == "s3":
        settings = _s3(location.bucket, options.s3)
        # A bucket that locks what is put into it demands a checksum.
        return settings if options.lock is None else {**settings, "checksum_algorithm": "sha256"}
    return _gcs(options.gcs) if location.scheme == "gs" else _azure(options.azure)


def client_of(location: Location, options: StorageConfig) -> dict[str, Any]:
    """The settings of the HTTP client of a cloud's client."""
    client: dict[str, Any] = {"timeout": timedelta(seconds=options.request_timeout_s)}
    if (_endpoint(location, options) or "").startswith("http://"):
        client["allow_http"] = True
    if options.ca_file is not None:
        try:
            client["root_certificate"] = options.ca_file.read_bytes()
        except OSError as error:
            raise UsageError(
                f"the certificates cannot be read: {error.strerror}", object_name=str(options.ca_file)
            ) from error
    return client


def _endpoint(location: Location, options: StorageConfig) -> str | None:
    if location.scheme == "s3":
        return ambient_s3(options.s3).endpoint
    if location.scheme == "gs":
        return options.gcs.endpoint or _first(os.environ, _GCS_ENDPOINTS)
    return options.azure.endpoint or _first(os.environ, _AZURE_ENDPOINTS)


def _gcs(options: GcsConfig) -> dict[str, Any]:
    file = options.credentials_file
    if file is not None and (other := next((name for name in _GCS_CREDENTIALS if os.environ.get(name)), None)):
        raise UsageError(
            f"both gcs.credentials_file and the variable {other} give credentials, and {other} would win",
            object_name=str(file),
            hint=f"unset {other}, or remove gcs.credentials_file",
        )
    return _given(application_credentials=None if file is None else str(file), base_url=options.endpoint)


def _azure(options: AzureConfig) -> dict[str, Any]:
    account, key = options.account or _first(os.environ, _AZURE_ACCOUNTS), options.account_key
    if account is None:
        raise UsageError(
            "the URL names a container, and nothing names its storage account",
            hint=f"set azure.account, or the variable {_AZURE_ACCOUNTS[0]}",
        )
    if key is not None and options.sas_token is not None:
        raise UsageError("azure.account_key and azure.sas_token exclude each other", hint="remove one of them")
    # Without a type the client takes a token or a key of the environment before a signature of the configuration.
    kind = "access_key" if key is not None else "sas_token" if options.sas_token is not None else None
    return _given(
        account_name=account,
        account_key=key or (_first(os.environ, _AZURE_KEYS) if kind is None else None),
        sas_key=options.sas_token,
        credential_type=kind,
        endpoint=options.endpoint,
    )


def _s3(bucket: str, options: S3Config) -> dict[str, Any]:
    ambient = ambient_s3(options)
    endpoint = ambient.endpoint
    if endpoint is not None and not options.path_style:
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{bucket}.{host}"
    return _given(
        endpoint=endpoint,
        region=ambient.region,
        virtual_hosted_style_request=not options.path_style,
        access_key_id=options.access_key_id or ambient.access_key_id,
        secret_access_key=options.secret_access_key or ambient.secret_access_key,
        session_token=options.session_token or ambient.session_token,
        server_side_encryption=options.encryption,
        sse_kms_key_id=options.kms_key_id,
        sse_bucket_key_enabled=options.bucket_key,
        sse_customer_key_base64=options.customer_key,
    )


def _given(**settings: Any) -> dict[str, Any]:  # noqa: ANN401 - settings of any type
    """The settings that are set; obstore takes the others from the environment."""
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in settings.items()
        if value is not None
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambient:
    """None: nothing says it."""

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None


def ambient_s3(options: S3Config, environ: Mapping[str, str] = os.environ) -> Ambient:
    """The additions to the options. UsageError: the profile does not exist, or maxbrod cannot follow it."""
    profile = _profile(environ)
    endpoint, region = _first(environ, _ENDPOINTS), _first(environ, _REGIONS)
    keys: dict[str, str] = {}
    if options.access_key_id is None and not any(environ.get(name) for name in _CREDENTIALS):
        keys = _keys(profile, environ)
    ignored = environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    return Ambient(
        endpoint=options.endpoint or (None if ignored else endpoint or profile.get("endpoint_url")),
        region=options.region or region or profile.get("region"),
        access_key_id=keys.get("aws_access_key_id"),
        secret_access_key=keys.get("aws_secret_access_key"),
        session_token=keys.get("aws_session_token"),
    )


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _profile(environ: Mapping[str, str]) -> dict[str, str]:
    wanted = environ.get("AWS_PROFILE")
    name = wanted or _DEFAULT
    config = _read(environ, "AWS_CONFIG_FILE", "config")
    shared = _read(environ, "AWS_SHARED_CREDENTIALS_FILE", "credentials")
    section = name if name == _DEFAULT else f"profile {name}"
    if wanted is not None and not config.has_section(section) and not shared.has_section(name):
        raise UsageError(
            "AWS_PROFILE names a profile that is neither in ~/.aws/config nor in ~/.aws/credentials",
            object_name=wanted,
            hint="correct it, or unset it",
        )
    found = [dict(file[part]) for file, part in ((config, section), (shared, name)) if file.has_section(part)]
    return {key: value for section in found for key, value in section.items()}


def _read(environ: Mapping[str, str], variable: str, name: str) -> ConfigParser:
    home = environ.get("HOME")
    given = environ.get(variable) or (f"{home}/.aws/{name}" if home else None)
    # A value may contain anything, also a percent sign.
    parser = ConfigParser(interpolation=None, default_section="")
    try:
        if given is not None:
            parser.read(Path(given).expanduser(), encoding="utf-8")
    except (ParserError, UnicodeDecodeError):
        # From None: the parser's message quotes the line.
        raise UsageError("the file cannot be parsed", operation="read the AWS profile", object_name=given) from None
    return parser


def _keys(profile: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    if "aws_access_key_id" in profile and "aws_secret_access_key" in profile:
        return dict(profile)
    means = next((name for name in _UNSUPPORTED if name in profile), None)
    if means is not None:
        raise UsageError(
            f"the AWS profile uses {means}, which maxbrod cannot follow",
            object_name=environ.get("AWS_PROFILE", _DEFAULT),
            hint='put its keys into the environment: eval "$(aws configure export-credentials --format env)"',
        )
    return {}

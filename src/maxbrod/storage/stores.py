"""The entry point: opens a `Storage` for a URL and its options, and probes what a store does.

Opening reads, writes and creates nothing but the folder of `memory://`.

For S3, the environment and `~/.aws` complete the configuration. obstore reads variables itself, but no profile and not
every name of an endpoint. A profile gives keys, a region and an endpoint. One that would have to run a program, log in
or take a role is refused by name: maxbrod does not do that, and must not go on as somebody else.
"""

from __future__ import annotations

import os
import stat
import tempfile
import uuid
from configparser import ConfigParser
from configparser import Error as ParserError
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store
from pydantic import SecretStr

from maxbrod.config import AzureConfig, GcsConfig, S3Config, StorageConfig
from maxbrod.errors import AccessDeniedError, ObjectExistsError, RefusedError, UsageError
from maxbrod.storage.composed import JoinedStorage, is_joined
from maxbrod.storage.local import LocalStorage
from maxbrod.storage.remote import Clients, RemoteStorage, RetryPolicy
from maxbrod.storage.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.storage.interface import Storage
    from maxbrod.storage.urls import Location


_SECTIONS: Final = {"s3": ("s3", S3Config()), "gs": ("gcs", GcsConfig()), "az": ("azure", AzureConfig())}
_MEMORY_FILE_SYSTEM: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own in it, checked to be ours

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


def open_storage(url: str, options: StorageConfig | None = None) -> Storage:
    """The storage at a URL; a plain path is a local directory. UsageError: the URL or an option is invalid."""
    options = options or StorageConfig()
    if is_joined(url):
        return JoinedStorage(url)
    location = parse_url(url)
    if location.scheme in {"file", "memory"}:
        refuse_foreign_options(location, options)
        return LocalStorage(directory_of(location), url=location.url, shared=options.shared)
    storage_class = options.s3.storage_class
    return RemoteStorage(
        location.url,
        open_clients(location, options),
        retries=RetryPolicy(deadline_s=options.deadline_s),
        attributes={} if storage_class is None else {"Storage-Class": storage_class},
    )


def open_clients(location: Location, options: StorageConfig) -> Clients:
    """Clients for a location. No request is sent."""
    refuse_foreign_options(location, options)
    try:
        return Clients(
            once=_open(location, options, {"max_retries": 0}), patient=_open(location, options, _patience(options))
        )
    except (BaseError, ValueError):
        # obstore's message quotes the option, which may be a secret key.
        raise UsageError(
            "the storage cannot be opened with these options",
            object_name=location.url,
            hint="check the keys, the endpoint and the certificates in the configuration and in the environment",
        ) from None


def refuse_foreign_options(location: Location, options: StorageConfig) -> None:
    """Refuse options for another cloud than the URL's: ignoring them could leave data unencrypted."""
    for scheme, (section, default) in _SECTIONS.items():
        if scheme != location.scheme and getattr(options, section) != default:
            raise UsageError(
                f"the options in {section} are for {scheme}://, and cannot be used here",
                object_name=location.url,
                hint="remove them; encryption and storage class of other clouds are set on the bucket itself",
            )


def _open(location: Location, options: StorageConfig, retries: dict[str, Any]) -> ObjectStore:
    settings: dict[str, Any] = {
        "prefix": location.prefix or None,
        "client_options": _client(location, options),
        "retry_config": retries,
    }
    settings |= settings_of(location, options)
    if location.scheme == "s3":
        return S3Store(location.bucket, **settings)
    if location.scheme == "gs":
        return GCSStore(location.bucket, **settings)
    return AzureStore(location.bucket, **settings)


def settings_of(location: Location, options: StorageConfig) -> dict[str, Any]:
    """The settings of a cloud's client, with secrets in plain text; it looks up omitted ones itself."""
    if location.scheme == "s3":
        return _s3(location.bucket, options.s3)
    if location.scheme == "gs":
        file = options.gcs.credentials_file
        return _given(application_credentials=None if file is None else str(file))
    azure = options.azure
    return _given(account_name=azure.account, account_key=azure.account_key, sas_key=azure.sas_token)


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


def _client(location: Location, options: StorageConfig) -> dict[str, Any]:
    client: dict[str, Any] = {"timeout": timedelta(seconds=options.request_timeout_s)}
    if location.scheme == "s3" and (ambient_s3(options.s3).endpoint or "").startswith("http://"):
        client["allow_http"] = True
    if options.ca_file is not None:
        try:
            client["root_certificate"] = options.ca_file.read_bytes()
        except OSError as error:
            raise UsageError(
                f"the certificates cannot be read: {error.strerror}", object_name=str(options.ca_file)
            ) from error
    return client


def _patience(options: StorageConfig) -> dict[str, Any]:
    backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2}
    return {"max_retries": 1000, "retry_timeout": timedelta(seconds=options.deadline_s), "backoff": backoff}


def directory_of(location: Location) -> Path:
    """The folder of a `file` or `memory` location. For `memory` the private parent folder exists when this returns.

    Spark's workers are other processes than the one that opened the archive, so `memory://` is a folder of the
    machine's memory file system. It lasts until the machine restarts or the folder is removed.
    """
    if location.scheme == "memory":
        return _private_folder() / location.bucket / location.prefix
    return Path(location.prefix)


def _private_folder() -> Path:
    parent = _MEMORY_FILE_SYSTEM if _MEMORY_FILE_SYSTEM.is_dir() else Path(tempfile.gettempdir())
    folder = parent / f"maxbrod-memory-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # Another user can create a folder or a link of this name, and could then read and change the data in it.
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RefusedError(
            "the folder for memory:// is not private to this user",
            operation="open",
            object_name=str(folder),
            hint="remove it, or give it to the user with mode 0700",
        )
    return folder


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


def probe_conditional_puts(storage: Storage) -> bool:
    """False: the store overwrites silently, and two writers of one archive would overwrite each other's commits.

    Creates one object of a few bytes twice and deletes it.
    """
    name = f"probes/{uuid.uuid4().hex}"
    try:
        storage.put(name, b"first")
        storage.put(name, b"second")
    except ObjectExistsError:
        return True
    finally:
        storage.delete([name])
    return False


def probe_clock_ms(storage: Storage) -> int:
    """The time with which the store stamps an object written now. StorageFullError: it takes none."""
    name = f"probes/{uuid.uuid4().hex}"
    try:
        storage.put(name, b"what time is it?")
        return storage.head(name).modified_ms
    finally:
        # Who may only add and read may ask too: what stays behind, `gc` finds.
        with suppress(AccessDeniedError):
            storage.delete([name])

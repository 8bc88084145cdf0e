"""What the environment and `~/.aws` say about S3, where the configuration says nothing.

obstore reads variables itself, but no profile and not every name of an endpoint. A profile gives keys, a region and an
endpoint. One that would have to run a program, log in or take a role is refused by name: maxbrod does not do that, and
must not go on as somebody else.
"""

from __future__ import annotations

import os
from configparser import ConfigParser
from configparser import Error as ParserError
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.config import S3Config

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambient:
    """None: nothing says it."""

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None


def ambient_s3(options: S3Config, environ: Mapping[str, str] = os.environ) -> Ambient:
    """What is to be added to the options. UsageError: the profile does not exist, or maxbrod cannot follow it."""
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
    return {key: value for each in found for key, value in each.items()}


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
    means = next((each for each in _UNSUPPORTED if each in profile), None)
    if means is not None:
        raise UsageError(
            f"the AWS profile uses {means}, which maxbrod cannot follow",
            object_name=environ.get("AWS_PROFILE", _DEFAULT),
            hint='put its keys into the environment: eval "$(aws configure export-credentials --format env)"',
        )
    return {}

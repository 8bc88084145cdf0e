"""URLs of storages and names of objects: those that every store supports and that cannot lead out of the root.

Parses and checks. Opens nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast, get_args
from urllib.parse import unquote, urlsplit

from maxbrod.errors import UsageError

Scheme: TypeAlias = Literal["file", "s3", "gs", "az", "memory"]

_SCHEMES: Final = get_args(Scheme)
_NEARLY: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*):[/\\]+|(file|s3|gs|az|memory):|(s3|gs|az|memory)//+", re.IGNORECASE
)
_WINDOWS: Final = re.compile(r"[A-Za-z]:[/\\]|\\\\")
_HINT: Final = "a path, file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
_UNKNOWN_HINTS: Final = {
    **dict.fromkeys(("http", "https"), "write s3://bucket/prefix, and the server's address as --s3-endpoint"),
    **dict.fromkeys(("s3a", "s3n"), "write s3://bucket/prefix"),
    "gcs": "write gs://bucket/prefix",
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs", "azure"), "write az://container/prefix"),
}

RESERVED: Final = ".maxbrod-tmp"
"""The folder of unfinished files. Callers cannot use it, and no listing shows it."""
_NAME_BYTES_MAX: Final = 1024  # S3's keys
_PART_BYTES_MAX: Final = 255  # Linux's file names


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """`bucket` is a bucket, a container, or the name of a `memory://`; for `file`, `prefix` is an absolute path."""

    scheme: Scheme
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        if self.scheme == "file":
            return self.prefix
        return "/".join(part for part in (f"{self.scheme}://{self.bucket}", self.prefix) if part)


def parse_url(url: str) -> Location:
    """The location of a URL. A plain path is a local directory, relative to the working directory."""
    if "\0" in url or not url.strip():
        raise UsageError("the URL of the storage is empty or has a NUL in it", hint=_HINT)
    if "://" not in url:
        _refuse_nearly(url)
        return _directory(url)
    scheme = url.partition("://")[0].lower()
    if scheme not in _SCHEMES:
        raise _unknown(scheme)
    # These errors do not quote the URL: the part before an @ or after a ? is often a secret.
    if scheme == "file":
        return _file(url)
    authority, _, prefix = url.partition("://")[2].partition("/")
    if "@" in authority or ":" in authority or set("?#") & set(authority + prefix):
        raise UsageError(
            "the URL of a storage has no user, password, port or query",
            hint="credentials and the endpoint belong into the configuration or the environment",
        )
    if not authority:
        raise UsageError(f"{scheme}:// needs a name: {url!r}", hint=_HINT)
    if scheme == "memory":
        check_name(authority)  # it becomes the name of a folder
    return Location(scheme=cast("Scheme", scheme), bucket=authority, prefix=check_folder(prefix))


def _unknown(scheme: str) -> UsageError:
    return UsageError(f"storage of the kind {scheme}:// is not supported", hint=_UNKNOWN_HINTS.get(scheme, _HINT))


def _refuse_nearly(path: str) -> None:
    """Refuse a mistyped URL: it would create a local folder, and a backup into it would look like one in a cloud."""
    if _WINDOWS.match(path):
        raise UsageError("Windows paths are not supported", hint=_HINT)
    found = _NEARLY.match(path)
    if found is None:
        return
    scheme, rest = (found[1] or found[2] or found[3]).lower(), path[found.end() :].lstrip("/\\")
    if scheme not in _SCHEMES:
        raise _unknown(scheme)
    start = f"{scheme}:///" if scheme == "file" else f"{scheme}://"
    # The part before an @ or after a ? is often a secret; a file URL has no relative path.
    hidden = set("@?#\\") & set(rest) or (scheme == "file" and found[2])
    meant = f"{start}…" if hidden else f"{start}{rest}"
    raise UsageError(
        f"the URL of the storage begins with {found[0]!r}, which is nearly {start}",
        hint=f"write {meant}; a folder of that name is ./{found[0]}…",
    )


def _directory(path: str) -> Location:
    return Location(scheme="file", bucket="", prefix=str(Path(path).absolute()))


def _file(url: str) -> Location:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path or parts.query or parts.fragment:
        raise UsageError("a file URL has three slashes, an absolute path and nothing else", hint=_HINT)
    path = unquote(parts.path)
    if "\0" in path:
        raise UsageError("the URL of the storage has a NUL in it", hint=_HINT)
    return _directory(path)


def check_name(path: str) -> str:
    """The same name, or UsageError."""
    complaint = _complaint(path)
    if complaint is not None:
        raise UsageError(
            f"an object cannot be named {path!r}: {complaint}",
            hint="a name is parts joined by '/', none of them empty, '.' or '..'",
        )
    return path


def check_folder(folder: str) -> str:
    """The folder without a trailing slash; empty is the root."""
    bare = folder.removesuffix("/")
    return check_name(bare) if folder else ""


def _complaint(path: str) -> str | None:
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it is no Unicode text"
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        return "a part of it is empty, '.' or '..'"
    if "\\" in path or any(ord(character) < 32 or ord(character) == 127 for character in path):
        return "it has a backslash or a control character"
    if parts[0] == RESERVED:
        return f"{RESERVED} is for unfinished files"
    if len(encoded) > _NAME_BYTES_MAX or any(len(part.encode()) > _PART_BYTES_MAX for part in parts):
        return f"it is longer than {_NAME_BYTES_MAX} bytes, or a part of it than {_PART_BYTES_MAX}"
    return None

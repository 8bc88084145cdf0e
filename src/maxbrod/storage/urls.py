"""Takes the URL of an archive apart. Opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast, get_args
from urllib.parse import unquote, urlsplit

from maxbrod.errors import UsageError
from maxbrod.storage.names import check_folder, check_name

Scheme: TypeAlias = Literal["file", "s3", "gs", "az", "memory"]

_SCHEMES: Final = get_args(Scheme)
_HINT: Final = "a path, file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """`bucket` is a bucket, a container, or the name of a memory; `prefix` an absolute path where it is a file's."""

    scheme: Scheme
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        if self.scheme == "file":
            return self.prefix
        return "/".join(part for part in (f"{self.scheme}://{self.bucket}", self.prefix) if part)


def parse_url(url: str) -> Location:
    """A plain path stands for a local directory, from the working directory on."""
    if "\0" in url or not url.strip():
        raise UsageError("the URL of the storage is empty or has a NUL in it", hint=_HINT)
    if "://" not in url:
        return _directory(url)
    scheme = url.partition("://")[0].lower()
    if scheme not in _SCHEMES:
        raise UsageError(f"storage of the kind {scheme}:// is not known", hint=_HINT)
    # The URL is not quoted in these: what stands before an @ or behind a ? is often a secret.
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

"""The names that an object may have: those that every store supports and that cannot lead out of the root."""

from __future__ import annotations

from typing import Final

from maxbrod.errors import UsageError

RESERVED: Final = ".maxbrod-tmp"
"""The folder of unfinished files. Callers cannot use it, and no listing shows it."""

_NAME_BYTES_MAX: Final = 1024  # S3's keys
_PART_BYTES_MAX: Final = 255  # Linux's file names


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

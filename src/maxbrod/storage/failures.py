"""Turns what obstore raises into our errors.

obstore's text holds the request's URL (for Azure, signed), the server's answer (for S3, the access key) and a dump of
Rust structures. None of it is passed on: only the HTTP status, the store's error code and how the connection failed.
"""

from __future__ import annotations

import errno
import re
from typing import Final

from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, UnauthenticatedError

from maxbrod.errors import (
    AccessDeniedError,
    MaxbrodError,
    ObjectExistsError,
    ObjectNotFoundError,
    RefusedError,
    StorageFullError,
    TruncatedDataError,
    UnavailableError,
    UsageError,
)

_STATUS: Final = re.compile(r"status code: (\d{3})\b")
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_CONNECTION: Final = re.compile(r"HttpError \{\s*kind: (\w+)")
_GARBLED: Final = re.compile(r"Got invalid \w+(?: \w+)? response|Error getting \w+ response body")
_NO_CREDENTIALS: Final = re.compile(r"169\.254\.169\.254|metadata\.google\.internal|/metadata/identity/")

_LOCAL_HINT: Final = "look at the owner and the mode of the directory, and whether its file system has hard links"
_NAME_HINT: Final = "in a directory, an object and a folder cannot have the same name"
_HINTS: Final = {
    "AccessDenied": "the credentials lack a permission; docs/storage.md lists those that maxbrod needs",
    "SignatureDoesNotMatch": "the secret key is not the one of this access key",
    "InvalidAccessKeyId": "the store does not know this access key",
    "XAdminUserNotFound": "the store does not know this access key",
    "ExpiredToken": "the session token has expired; get a new one",
    "InvalidToken": "the session token is not valid; get a new one",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "InvalidObjectState": "the object is in the storage class GLACIER; have S3 restore it first, then try again",
    "KMS.DisabledException": "the KMS key is disabled",
}
_DENIED_CODES: Final = frozenset(_HINTS)
# The request came, but not in one piece, or met another one on the same name.
_TRANSIENT_CODES: Final = frozenset(
    {"RequestTimeout", "XAmzContentSHA256Mismatch", "BadDigest", "IncompleteBody", "ConditionalRequestConflict"}
)
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
_REGION_CODES: Final = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"})
_WAYS: Final = {
    "Timeout": "it did not answer in time",
    "Connect": "it cannot be reached",
    "Interrupted": "the connection broke off inside an answer",
}


def translate(error: Exception, operation: str, object_name: str) -> MaxbrodError:
    """The error to raise instead, `from None`, so that no traceback shows the other."""
    text = str(error)
    status = int(found[1]) if (found := _STATUS.search(text)) else None
    code = found[1] if (found := _CODE.search(text)) else None
    ours = _denied(error, text, status, code) or _transient(text, status, code) or _final(error, text, status, code)
    ours.operation, ours.object_name = operation, object_name
    return ours


def translate_os(error: OSError, operation: str, object_name: str) -> MaxbrodError:
    """The same for a local directory."""
    ours = _from_errno(error)
    ours.operation, ours.object_name = operation, object_name
    return ours


def too_short(operation: str, object_name: str, *, there: int, expected: int) -> TruncatedDataError:
    return TruncatedDataError(
        f"there are {there} bytes where {expected} should be",
        operation=operation,
        object_name=object_name,
        hint="the object was damaged, or is not the one that was written; check the archive",
    )


def _from_errno(error: OSError) -> MaxbrodError:
    reason = error.strerror or type(error).__name__
    match error.errno:
        case errno.ENOENT:
            return ObjectNotFoundError("there is no such object")
        case errno.EEXIST:
            return ObjectExistsError("there is such an object already", hint="objects are never overwritten")
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StorageFullError(f"the disk is full: {reason}", hint="make room, then try again")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return AccessDeniedError(f"the file system does not allow it: {reason}", hint=_LOCAL_HINT)
        case errno.ELOOP:
            return RefusedError("this is a symbolic link, which maxbrod does not follow here")
        case errno.ENOTDIR | errno.EISDIR | errno.ENAMETOOLONG:
            return UsageError(f"the file system cannot have such a name here: {reason}", hint=_NAME_HINT)
        case _:
            return MaxbrodError(f"the file system failed: {reason}")


def _denied(error: Exception, text: str, status: int | None, code: str | None) -> MaxbrodError | None:
    if _NO_CREDENTIALS.search(text):
        # A machine that has a role may be asked too often; one that has none refuses or has no such address.
        busy = status in _BUSY or _way(text) == "Timeout"
        return (UnavailableError if busy else AccessDeniedError)(
            "no credentials were found for the storage",
            hint="give them in the configuration or the environment; docs/storage.md says how",
        )
    denied = isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in {401, 403}
    if denied or code in _DENIED_CODES:
        return AccessDeniedError(
            f"the storage does not allow it{_said(status, code)}", hint=_HINTS.get(code or "", _HINTS["AccessDenied"])
        )
    return None


def _transient(text: str, status: int | None, code: str | None) -> MaxbrodError | None:
    hint = "try again; if it stays so, look at the storage and the network"
    if code in _TRANSIENT_CODES or status in _BUSY:
        return UnavailableError(f"the storage failed to answer{_said(status, code)}", hint=hint)
    if status is not None:
        return None
    if _way(text) is not None:
        reason = _WAYS.get(_way(text) or "", "the connection broke")
        return UnavailableError(f"the storage failed to answer: {reason}", hint=hint)
    if _GARBLED.search(text):
        return UnavailableError("the answer of the storage makes no sense", hint=hint)
    return None


def _final(error: Exception, text: str, status: int | None, code: str | None) -> MaxbrodError:
    if code == "NoSuchBucket":
        return UsageError("the bucket does not exist", hint="create it first; maxbrod never creates buckets")
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError("there is no such object")
    if isinstance(error, AlreadyExistsError):
        return ObjectExistsError("there is such an object already", hint="objects are never overwritten")
    if status == 416 or "Invalid range" in text:
        return TruncatedDataError("the object ends before the bytes that were asked for")
    if status == 507 or code == "QuotaExceeded":
        return StorageFullError(f"the storage is full{_said(status, code)}", hint="make room, then try again")
    if code in _REGION_CODES or status in {301, 307}:
        return UsageError(f"the bucket is in another region{_said(status, code)}", hint="set s3.region to its region")
    if status == 501:
        return RefusedError(f"the storage cannot do this{_said(status, code)}", hint="use another kind of storage")
    return MaxbrodError(f"the storage failed{_said(status, code) or f': {type(error).__name__}'}")


def _way(text: str) -> str | None:
    """How the connection failed, in the HTTP client's word; empty where it does not say."""
    connection = _CONNECTION.search(text)
    if connection is None:
        return "" if "HTTP error" in text else None
    return connection[1]


def _said(status: int | None, code: str | None) -> str:
    words = [word for word in (str(status) if status is not None else "", code or "") if word]
    return f": it said {' '.join(words)}" if words else ""

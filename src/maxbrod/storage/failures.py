"""Turns what obstore raises into our errors.

obstore's text holds the request's URL (for Azure, signed), the server's answer (for S3, the access key) and a dump of
Rust structures. None of it is passed on: only the host, the HTTP status, the store's error code, the region that
it names, and how the connection failed.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
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
_HOST: Final = re.compile(r"\bhttps?://([A-Za-z0-9.\-]+(?::\d{1,5})?|\[[0-9a-fA-F:]+\](?::\d{1,5})?)(?=[/?\s,])")
"""Of the request's URL nothing but this is passed on: a query may be a signature."""
_REGION: Final = re.compile(r"<Region>([a-z0-9-]{1,32})</Region>")
_NO_BUCKET: Final = re.compile(r"<Code>(?:NoSuchBucket|ContainerNotFound)</Code>|The specified bucket does not exist")
_REDIRECTED: Final = re.compile(r"[Rr]eceived redirect without LOCATION")
_PLAINTEXT_TO_TLS: Final = re.compile(r"HTTP request to an HTTPS server|plain HTTP request was sent to HTTPS port")
_NO_TLS: Final = re.compile(r"InvalidMessage\(\s*InvalidContentType")
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")

_LOCAL_HINT: Final = "look at the owner and the mode of the directory, and whether its file system has hard links"
_NAME_HINT: Final = "in a directory, an object and a folder cannot have the same name"
_RIGHTS_HINT: Final = "docs/storage.md lists the permissions that maxbrod needs"
_KEYS_HINT: Final = (
    "look at the keys in the configuration and the environment; docs/storage.md says where they come from"
)
_WRONG_KEY: Final = ("the secret key is not the one of this access key", _KEYS_HINT)
_UNKNOWN_KEY: Final = ("the storage does not know this access key", _KEYS_HINT)
_DENIALS: Final = {
    "SignatureDoesNotMatch": _WRONG_KEY,
    "AuthenticationFailed": ("the account key, the SAS token or the clock of this machine is wrong", _KEYS_HINT),
    "InvalidAccessKeyId": _UNKNOWN_KEY,
    "XAdminUserNotFound": _UNKNOWN_KEY,
    "ExpiredToken": ("the session token has expired", "get a new one"),
    "InvalidToken": ("the session token is not valid", "get a new one"),
    "RequestTimeTooSkewed": ("the clock of this machine is wrong", "set it; S3 takes no request that is 15 min off"),
    "InvalidObjectState": (
        "the object is in the storage class GLACIER",
        "have S3 restore it first, then try again",
    ),
    "KMS.DisabledException": ("the KMS key is disabled", "enable it, or name another one in s3.kms_key_id"),
}
"""What the store's code means, and the way out."""
_ACTIONS: Final = {
    "put": "s3:PutObject",
    "replace": "s3:PutObject",
    "create": "s3:PutObject",
    "get": "s3:GetObject",
    "get_ranges": "s3:GetObject",
    "head": "s3:GetObject",
    "list": "s3:ListBucket",
    "delete": "s3:DeleteObject",
}
# The request came, but not in one piece, or met another one on the same name.
_TRANSIENT_CODES: Final = frozenset(
    {"RequestTimeout", "XAmzContentSHA256Mismatch", "BadDigest", "IncompleteBody", "ConditionalRequestConflict"}
)
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
_REGION_CODES: Final = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"})
_WAYS: Final = {
    "Timeout": "did not answer in time",
    "Connect": "cannot be reached",
    "Interrupted": "broke the connection off inside an answer",
}


def translate(error: Exception, operation: str, object_name: str) -> MaxbrodError:
    """The error to raise instead, `from None`, so that no traceback shows the other."""
    text = str(error)
    status = int(found[1]) if (found := _STATUS.search(text)) else None
    code = found[1] if (found := _CODE.search(text)) else None
    told = _Told(error=error, text=text, status=status, code=code, operation=operation, object_name=object_name)
    ours = _denied(told) or _misdirected(told) or _transient(told) or _final(told)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What obstore raised, taken apart."""

    error: Exception
    text: str
    status: int | None
    code: str | None
    operation: str
    object_name: str

    @property
    def said(self) -> str:
        words = [word for word in (str(self.status) if self.status is not None else "", self.code or "") if word]
        return f": it said {' '.join(words)}" if words else ""

    @property
    def way(self) -> str | None:
        """How the connection failed, in the HTTP client's word; empty where it does not say."""
        connection = _CONNECTION.search(self.text)
        if connection is None:
            return "" if "HTTP error" in self.text else None
        return connection[1]

    @property
    def store(self) -> str:
        host = _HOST.search(self.text)
        return f"the storage at {host[1]}" if host else "the storage"

    @property
    def bucket(self) -> str:
        return self.object_name.partition("://")[2].partition("/")[0]


def _denied(told: _Told) -> MaxbrodError | None:
    if _NO_CREDENTIALS.search(told.text):
        # A machine that has a role may be asked too often; one that has none refuses or has no such address.
        busy = told.status in _BUSY or told.way == "Timeout"
        return (UnavailableError if busy else AccessDeniedError)(
            "no credentials were found for the storage, and the machine has no role that gives some",
            hint="give them in the configuration or the environment; docs/storage.md says how",
        )
    if told.code in _DENIALS:
        message, hint = _DENIALS[told.code]
        return AccessDeniedError(f"{message}{told.said}", hint=hint)
    if isinstance(told.error, PermissionDeniedError | UnauthenticatedError) or told.status in {401, 403}:
        action = _ACTIONS.get(told.operation) if told.object_name.startswith("s3://") else None
        lacking = f"the credentials may lack {action} on {told.bucket}; " if action else "the credentials may lack it; "
        return AccessDeniedError(f"the storage does not allow it{told.said}", hint=lacking + _RIGHTS_HINT)
    return None


def _misdirected(told: _Told) -> MaxbrodError | None:
    """What no retry can help: another name, another protocol or another authority is needed."""
    if _PLAINTEXT_TO_TLS.search(told.text):
        return UsageError(f"{told.store} speaks TLS only", hint="write the endpoint with https://")
    if told.way is None or told.status is not None:
        return None
    if found := _CERTIFICATE.search(told.text):
        unknown = found[1] in {"UnknownIssuer", "Other"}
        reason = "no known authority has signed it" if unknown else found[1]
        return UsageError(
            f"the certificate of {told.store} is not trusted: {reason}",
            hint="storage.ca_file must hold the authority that signed it"
            if unknown
            else "the endpoint's host must be one that the certificate was issued for, and it must be valid now",
        )
    if _NO_TLS.search(told.text):
        return UsageError(f"{told.store} does not speak TLS", hint="write the endpoint with http://")
    return None


def _transient(told: _Told) -> MaxbrodError | None:
    hint = "try again; if it stays so, look at the storage and the network"
    if told.code in _TRANSIENT_CODES or told.status in _BUSY:
        return UnavailableError(f"{told.store} failed to answer{told.said}", hint=hint)
    if told.status is not None:
        return None
    if told.way is not None:
        if "dns error" in told.text:
            # A typing error looks like a name server that is away, and a run of days must outlive the latter.
            names = "look at the endpoint, the region and the account, and at this machine's name server"
            return UnavailableError(f"{told.store} has no address: its name cannot be resolved", hint=names)
        if "ConnectionRefused" in told.text:
            endpoint = "see that the server runs and that the endpoint is right, then try again"
            return UnavailableError(f"{told.store} refuses connections", hint=endpoint)
        return UnavailableError(f"{told.store} {_WAYS.get(told.way, 'broke the connection')}", hint=hint)
    if _GARBLED.search(told.text):
        return UnavailableError(f"the answer of {told.store} makes no sense", hint=hint)
    return None


def _final(told: _Told) -> MaxbrodError:
    if _NO_BUCKET.search(told.text):
        return UsageError(
            f"there is no bucket {told.bucket}", hint="look at the URL, or create it; maxbrod never creates buckets"
        )
    if isinstance(told.error, FileNotFoundError):
        return ObjectNotFoundError("there is no such object")
    if isinstance(told.error, AlreadyExistsError):
        return ObjectExistsError("there is such an object already", hint="objects are never overwritten")
    if told.status == 416 or "Invalid range" in told.text:
        return TruncatedDataError("the object ends before the bytes that were asked for")
    if told.status == 507 or told.code == "QuotaExceeded":
        return StorageFullError(f"the storage is full{told.said}", hint="make room, then try again")
    if told.code in _REGION_CODES or told.status in {301, 307} or _REDIRECTED.search(told.text):
        region = found[1] if (found := _REGION.search(told.text)) else "its region"
        return UsageError(
            f"the bucket {told.bucket} is in another region{told.said}", hint=f"set s3.region to {region}"
        )
    if told.status == 501:
        return RefusedError(f"the storage cannot do this{told.said}", hint="use another kind of storage")
    return MaxbrodError(f"{told.store} failed{told.said or f': {type(told.error).__name__}'}")

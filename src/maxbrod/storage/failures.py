"""Translates errors of obstore and of the file system into ours.

obstore's message contains the request's URL (for Azure, signed), the server's answer (for S3, the access key) and a
dump of Rust structures. Our errors keep only the host, the HTTP status, the store's error code, the region that it
names, and how the connection failed.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import Final

from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, UnauthenticatedError

from maxbrod.errors import (
    AccessDeniedError,
    ForbiddenError,
    FrozenObjectError,
    MaxbrodError,
    ObjectExistsError,
    ObjectNotFoundError,
    RefusedError,
    StorageFullError,
    TruncatedDataError,
    UnavailableError,
    UsageError,
)

_STATUS: Final = re.compile(r"(?:status |\()code: (\d{3})\b")
"""The code of an answer, or of one object in the answer to a deletion of many."""
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>|\(code: ([A-Z][A-Za-z.]{1,63})\)")
"""The code of an answer, or of one object in the answer to a deletion of many."""
_CHECKSUM: Final = re.compile(r"Content-MD5 OR x-amz-checksum-", re.IGNORECASE)
_LOCKED: Final = re.compile(r"protected by object lock|is WORM protected")
_CONNECTION: Final = re.compile(r"HttpError \{\s*kind: (\w+)")
_GARBLED: Final = re.compile(r"Got invalid \w+(?: \w+)? response|Error getting \w+ response body")
_NO_CREDENTIALS: Final = re.compile(r"169\.254\.169\.254|metadata\.google\.internal|/metadata/identity/")
_HOST: Final = re.compile(r"\bhttps?://([A-Za-z0-9.\-]+(?::\d{1,5})?|\[[0-9a-fA-F:]+\](?::\d{1,5})?)(?=[/?\s,])")
"""The only part of the request's URL that our errors keep: a query may be a signature."""
_REGION: Final = re.compile(r"<Region>([a-z0-9-]{1,32})</Region>")
_NO_BUCKET: Final = re.compile(
    r"<Code>(?:NoSuchBucket|ContainerNotFound|ContainerBeingDeleted)</Code>"
    r"|The specified (?:bucket|container) does not exist"
)
_NO_TOKEN: Final = re.compile(r"Error performing token request|Error reading federated token file")
_SHORT: Final = re.compile(r"Invalid range|Wanted range starting at")
_REDIRECTED: Final = re.compile(r"[Rr]eceived redirect without LOCATION")
_PLAINTEXT_TO_TLS: Final = re.compile(r"HTTP request to an HTTPS server|plain HTTP request was sent to HTTPS port")
_NO_TLS: Final = re.compile(r"InvalidMessage\(\s*InvalidContentType")
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")

_LOCAL_HINT: Final = "check the owner and the mode of the directory, and whether its file system supports hard links"
_NAME_HINT: Final = "in a directory, an object and a folder cannot have the same name"
_RIGHTS_HINT: Final = "'maxbrod help storage' lists the permissions that maxbrod needs"
_KEYS_HINT: Final = "check the keys in the configuration and the environment; see 'maxbrod help storage'"
_WRONG_KEY: Final = ("the secret key is not the one of this access key", _KEYS_HINT)
_UNKNOWN_KEY: Final = ("the storage does not know this access key", _KEYS_HINT)
_DENIALS: Final = {
    "SignatureDoesNotMatch": _WRONG_KEY,
    "AuthenticationFailed": ("the account key, the SAS token or the clock of this machine is wrong", _KEYS_HINT),
    "AuthorizationFailure": (
        "the account key or the SAS token is wrong, or the firewall of the storage account excludes this machine",
        _KEYS_HINT,
    ),
    "InvalidAuthenticationInfo": ("the token is not valid", "get a new one"),
    "NoAuthenticationInformation": ("the storage needs credentials", _KEYS_HINT),
    "KeyBasedAuthenticationNotPermitted": (
        "the storage account accepts neither its key nor SAS tokens",
        "log in with a service principal or the machine's identity; 'maxbrod help storage' says how",
    ),
    "AccountIsDisabled": ("the storage account is disabled", "enable it"),
    **dict.fromkeys(
        (
            "AuthorizationProtocolMismatch",
            "AuthorizationResourceTypeMismatch",
            "AuthorizationServiceMismatch",
            "AuthorizationSourceIPMismatch",
        ),
        ("the SAS token does not cover such a request", _KEYS_HINT),
    ),
    "AuthenticationRequired": ("the storage does not accept these credentials", _KEYS_HINT),
    "InvalidSecurity": ("the storage does not accept these credentials", _KEYS_HINT),
    "InvalidAccessKeyId": _UNKNOWN_KEY,
    "XAdminUserNotFound": _UNKNOWN_KEY,
    "ExpiredToken": ("the session token has expired", "get a new one"),
    "InvalidToken": ("the session token is not valid", "get a new one"),
    "RequestTimeTooSkewed": ("the clock of this machine is wrong", "set it; S3 refuses requests that are 15 min off"),
    "InvalidObjectState": (
        "the object is in an archive class, such as GLACIER or DEEP_ARCHIVE",
        "have S3 restore it first, then try again; 'maxbrod copy --thaw' does so",
    ),
    "BlobArchived": ("the blob is in the tier Archive", "have Azure rehydrate it first, then try again"),
    "BlobBeingRehydrated": ("the blob is being rehydrated from the tier Archive", "try again when that is done"),
    "KMS.DisabledException": ("the KMS key is disabled", "enable it, or name another one in s3.kms_key_id"),
}
"""The meaning of a store's error code, and a hint."""
_FROZEN: Final = frozenset({"InvalidObjectState", "BlobArchived", "BlobBeingRehydrated"})
_BLOBS: Final = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_ACTIONS: Final = {
    "s3": {
        **dict.fromkeys(("put", "replace", "create"), "s3:PutObject"),
        **dict.fromkeys(("get", "get_ranges", "head"), "s3:GetObject"),
        "list": "s3:ListBucket",
        "delete": "s3:DeleteObject",
        "locking": "s3:GetBucketObjectLockConfiguration",
        "keeps_versions": "s3:GetBucketVersioning",
        "lock_of": "s3:GetObjectRetention",
        "set_lock": "s3:PutObjectRetention",
        "ask back": "s3:RestoreObject",
        "list versions": "s3:ListBucketVersions",
        "bring back": "s3:GetObjectVersion or s3:PutObject",
        "remove version": "s3:DeleteObjectVersion",
    },
    "gs": {
        "put": "storage.objects.create",
        "replace": "storage.objects.create or storage.objects.delete",
        "create": "storage.objects.create or storage.multipartUploads.create",
        **dict.fromkeys(("get", "get_ranges", "head"), "storage.objects.get"),
        "list": "storage.objects.list",
        "delete": "storage.objects.delete",
    },
    "az": {
        **dict.fromkeys(("put", "replace", "create"), f"{_BLOBS}/write (SAS: w)"),
        **dict.fromkeys(("get", "get_ranges", "head"), f"{_BLOBS}/read (SAS: r)"),
        "list": f"{_BLOBS}/read (SAS: l)",
        "delete": f"{_BLOBS}/delete (SAS: d)",
    },
}
"""The permission that an operation needs, by the scheme of the URL."""
_CONFLICTS: Final = frozenset({None, "BlobAlreadyExists", "PreconditionFailed"})
"""The codes of a conflict (409) that say that the name is taken. There are others."""
_IMMUTABLE: Final = frozenset({"BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold"})
_UNCHANGEABLE: Final = _IMMUTABLE | {"UnauthorizedBlobOverwrite"}
"""Azure's answers to who wants to create a blob that exists, and must not or may not overwrite it."""
# The request arrived incomplete, or conflicted with another one on the same name.
_TRANSIENT_CODES: Final = frozenset(
    {
        "RequestTimeout",
        "XAmzContentSHA256Mismatch",
        "BadDigest",
        "IncompleteBody",
        "ConditionalRequestConflict",
        "OperationAborted",
    }
)
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
_REGION_CODES: Final = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"})
_WAYS: Final = {
    "Timeout": "did not answer in time",
    "Connect": "cannot be reached",
    "Interrupted": "broke the connection off inside an answer",
}


def translate(error: Exception, operation: str, object_name: str) -> MaxbrodError:
    """Our error for one of obstore. Raise it `from None`, so that no traceback shows obstore's message."""
    text = str(error)
    status = int(found[1]) if (found := _STATUS.search(text)) else None
    code = (found[1] or found[2]) if (found := _CODE.search(text)) else None
    failure = _Failure(error=error, text=text, status=status, code=code, operation=operation, object_name=object_name)
    ours = _taken(failure) or _denied(failure) or _misdirected(failure) or _transient(failure) or _final(failure)
    ours.operation, ours.object_name = operation, object_name
    return ours


def translate_os(error: OSError, operation: str, object_name: str) -> MaxbrodError:
    """Our error for one of a local file system."""
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
            return ObjectExistsError("the object already exists", hint="objects are never overwritten")
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StorageFullError(f"the disk is full: {reason}", hint="make room, then try again")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return ForbiddenError(f"the file system does not allow it: {reason}", hint=_LOCAL_HINT)
        case errno.ELOOP:
            return RefusedError("this is a symbolic link, which maxbrod does not follow here")
        case errno.ENOTDIR | errno.EISDIR | errno.ENAMETOOLONG:
            return UsageError(f"the file system does not allow such a name here: {reason}", hint=_NAME_HINT)
        case _:
            return MaxbrodError(f"the file system failed: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """The parts of an error of obstore."""

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
        """The HTTP client's word for the failure of the connection; empty if it does not say."""
        connection = _CONNECTION.search(self.text)
        if connection is None:
            return "" if "HTTP error" in self.text else None
        return connection[1]

    @property
    def store(self) -> str:
        host = _HOST.search(self.text)
        return f"the storage at {host[1]}" if host else "the storage"

    @property
    def scheme(self) -> str:
        return self.object_name.partition("://")[0]

    @property
    def bucket(self) -> str:
        return self.object_name.partition("://")[2].partition("/")[0]

    @property
    def bucket_kind(self) -> str:
        return "container" if self.scheme == "az" else "bucket"


def _taken(failure: _Failure) -> MaxbrodError | None:
    exists = isinstance(failure.error, AlreadyExistsError) and (failure.status != 409 or failure.code in _CONFLICTS)
    # A store may look at the lock of the object that is there before it looks at the condition.
    unchangeable = failure.code in _UNCHANGEABLE or _LOCKED.search(failure.text)
    if exists or (failure.operation in {"put", "create"} and unchangeable):
        return ObjectExistsError("the object already exists", hint="objects are never overwritten")
    return None


def _denied(failure: _Failure) -> MaxbrodError | None:
    if _NO_CREDENTIALS.search(failure.text):
        # The metadata service of a machine with a role may be overloaded; without a role it refuses or does not exist.
        busy = failure.status in _BUSY or failure.way == "Timeout"
        return (UnavailableError if busy else AccessDeniedError)(
            "no credentials were found for the storage, and the machine has no role that gives some",
            hint="give them in the configuration or the environment; 'maxbrod help storage' says how",
        )
    if _NO_TOKEN.search(failure.text) and failure.status not in _BUSY and failure.way is None:
        return AccessDeniedError(f"logging in for a token failed{failure.said}", hint=_KEYS_HINT)
    if failure.code in _IMMUTABLE or _LOCKED.search(failure.text):
        return ForbiddenError(
            f"a lock, a policy or a legal hold forbids to change or delete it{failure.said}", hint="wait until it ends"
        )
    if failure.code in _DENIALS:
        message, hint = _DENIALS[failure.code]
        frozen = failure.code in _FROZEN
        return (FrozenObjectError if frozen else AccessDeniedError)(f"{message}{failure.said}", hint=hint)
    forbidden = failure.status == 403 or failure.code == "AccessDenied"
    if forbidden or failure.status == 401 or isinstance(failure.error, PermissionDeniedError | UnauthenticatedError):
        action = _ACTIONS.get(failure.scheme, {}).get(failure.operation)
        lacking = (
            f"the credentials may lack {action} on {failure.bucket}; " if action else "the credentials may lack it; "
        )
        kind = ForbiddenError if forbidden else AccessDeniedError
        return kind(f"the storage does not allow it{failure.said}", hint=lacking + _RIGHTS_HINT)
    return None


def _misdirected(failure: _Failure) -> MaxbrodError | None:
    """Errors that need another name, protocol or certificate authority: no retry helps."""
    if _PLAINTEXT_TO_TLS.search(failure.text):
        return UsageError(f"{failure.store} speaks TLS only", hint="write the endpoint with https://")
    if failure.way is None or failure.status is not None:
        return None
    if found := _CERTIFICATE.search(failure.text):
        unknown = found[1] in {"UnknownIssuer", "Other"}
        reason = "no known authority has signed it" if unknown else found[1]
        return UsageError(
            f"the certificate of {failure.store} is not trusted: {reason}",
            hint="storage.ca_file must hold the authority that signed it"
            if unknown
            else "the endpoint's host must be one that the certificate was issued for, and it must be valid now",
        )
    if _NO_TLS.search(failure.text):
        return UsageError(f"{failure.store} does not speak TLS", hint="write the endpoint with http://")
    return None


def _transient(failure: _Failure) -> MaxbrodError | None:
    hint = "try again; if it persists, check the storage and the network"
    if failure.code in _TRANSIENT_CODES or failure.status in _BUSY:
        return UnavailableError(f"{failure.store} failed to answer{failure.said}", hint=hint)
    if failure.status is not None:
        return None
    if failure.way is not None:
        if "dns error" in failure.text:
            # A mistyped name looks like an unavailable name server, and a run of days must survive the latter.
            names = "check the endpoint, the region and the account, and this machine's name server"
            return UnavailableError(f"{failure.store} has no address: its name cannot be resolved", hint=names)
        if "ConnectionRefused" in failure.text:
            endpoint = "check that the server runs and that the endpoint is right, then try again"
            return UnavailableError(f"{failure.store} refuses connections", hint=endpoint)
        return UnavailableError(f"{failure.store} {_WAYS.get(failure.way, 'broke the connection')}", hint=hint)
    if _GARBLED.search(failure.text):
        return UnavailableError(f"the answer of {failure.store} is invalid", hint=hint)
    return None


def _final(failure: _Failure) -> MaxbrodError:
    if _NO_BUCKET.search(failure.text):
        return UsageError(
            f"there is no {failure.bucket_kind} {failure.bucket}",
            hint=f"check the URL, or create it; maxbrod never creates {failure.bucket_kind}s",
        )
    if isinstance(failure.error, FileNotFoundError) or failure.code == "NoSuchUpload":
        return ObjectNotFoundError("there is no such object")
    if failure.status == 416 or _SHORT.search(failure.text):
        return TruncatedDataError("the object ends before the requested bytes")
    if failure.status == 507 or failure.code == "QuotaExceeded":
        return StorageFullError(f"the storage is full{failure.said}", hint="make room, then try again")
    if failure.code in _REGION_CODES or failure.status in {301, 307} or _REDIRECTED.search(failure.text):
        region = found[1] if (found := _REGION.search(failure.text)) else "its region"
        return UsageError(
            f"the bucket {failure.bucket} is in another region{failure.said}", hint=f"set s3.region to {region}"
        )
    if failure.code == "InvalidRequest" and _CHECKSUM.search(failure.text):
        return RefusedError("the bucket locks what is put into it, and demands a checksum", hint="set storage.lock")
    if failure.status == 501:
        return RefusedError(f"the storage does not support this{failure.said}", hint="use another kind of storage")
    return MaxbrodError(f"{failure.store} failed{failure.said or f': {type(failure.error).__name__}'}")

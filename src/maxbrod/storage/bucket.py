"""A bucket of S3, asked for what obstore cannot send: locks, versions, and conditional uploads in parts.

Uses boto3, the extra `aws`, which signs the requests and finds credentials as obstore does. Nothing else in the package
knows a lock or a version of an object. Every method makes one attempt and raises our errors; callers retry.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

import google_crc32c
from pydantic import SecretStr

from maxbrod.config import S3Config, StorageConfig
from maxbrod.errors import (
    AccessDeniedError,
    EnvironmentMissingError,
    ForbiddenError,
    MaxbrodError,
    ObjectExistsError,
    ObjectNotFoundError,
    RefusedError,
    UnavailableError,
)
from maxbrod.model import now_ms
from maxbrod.storage.failures import translate
from maxbrod.storage.settings import Ambient, ambient_s3
from maxbrod.storage.urls import Location

if TYPE_CHECKING:
    from collections.abc import Sequence

LockMode = Literal["governance", "compliance"]

_NO_LOCK: Final = frozenset({"NoSuchObjectLockConfiguration", "ObjectLockConfigurationNotFoundError"})
_MISSING: Final = frozenset({"NoSuchKey", "NotFound", "404", "NoSuchVersion", "NoSuchUpload"})
_NO_OBJECT_LOCK: Final = re.compile(r"missing Object ?Lock ?Configuration", re.IGNORECASE)
"""Amazon writes it with spaces, versitygw and moto without."""
_DAY_MS: Final = 24 * 3600 * 1000
_POOL: Final = 32
"""Connections of one client: more threads than this never ask at once."""
NO_OBJECT_LOCK: Final = "make a bucket with Object Lock, which Amazon also switches on for a bucket with versions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLock:
    """The lock of an object, or one that a put asks for."""

    mode: LockMode
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRule:
    """The lock of everything that is written: each object is kept for this long after its own put."""

    mode: LockMode
    period_ms: int

    def at(self, now_ms: int) -> ObjectLock:
        return ObjectLock(mode=self.mode, until_ms=now_ms + self.period_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLocking:
    """The locks that a bucket allows, and those that it sets by itself."""

    enabled: bool
    """Object Lock is switched on."""
    default: LockRule | None = None
    """The lock that an object gets if its put asks for none."""

    def satisfies(self, wanted: LockRule) -> bool:
        """True if every put gets a lock that is at least as strict without asking for it."""
        rule = self.default
        strict = rule is not None and (rule.mode == "compliance" or wanted.mode == "governance")
        return strict and rule is not None and rule.period_ms >= wanted.period_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """One version of an object, or a marker that deleted it."""

    path: str
    version: str
    modified_ms: int
    size: int
    etag: str | None
    is_newest: bool
    is_marker: bool
    storage_class: str | None = None


class Bucket:
    """The bucket of a location, below its prefix. Opening it sends nothing; `EnvironmentMissingError`: no boto3."""

    def __init__(self, location: Location, options: StorageConfig) -> None:
        assert location.scheme == "s3"  # noqa: S101 - callers open it for S3 alone
        self.url = location.url
        self._name, self._prefix = location.bucket, f"{location.prefix}/" if location.prefix else ""
        self._settings = options.s3
        self._client = _client(
            options.s3,
            ca_file=None if options.ca_file is None else str(options.ca_file),
            timeout_s=options.request_timeout_s,
        )
        self._errors = _botocore_errors()

    # What it does by itself

    def keeps_versions(self) -> bool:
        """True: a deletion only hides an object, and an overwritten object stays as an older version."""
        with self._asked("keeps_versions", ""):
            return bool(self._client.get_bucket_versioning(Bucket=self._name).get("Status") == "Enabled")

    def locking(self) -> BucketLocking:
        try:
            with self._asked("locking", ""):
                found = self._client.get_object_lock_configuration(Bucket=self._name)["ObjectLockConfiguration"]
        except _NoLockError:
            return BucketLocking(enabled=False)
        rule = (found.get("Rule") or {}).get("DefaultRetention") or {}
        days = rule.get("Days") or 365 * (rule.get("Years") or 0)
        default = None
        if days and rule.get("Mode"):
            default = LockRule(mode=_mode(rule["Mode"]), period_ms=days * _DAY_MS)
        return BucketLocking(enabled=found.get("ObjectLockEnabled") == "Enabled", default=default)

    # Locks

    def lock_of(self, path: str) -> ObjectLock | None:
        """The lock of the newest version of an object. ObjectNotFoundError: there is none."""
        try:
            with self._asked("lock_of", path):
                found = self._client.get_object_retention(Bucket=self._name, Key=self._key(path))
        except _NoLockError:
            return None
        retention = found.get("Retention") or {}
        if not retention.get("Mode") or retention.get("RetainUntilDate") is None:
            return None
        return ObjectLock(mode=_mode(retention["Mode"]), until_ms=_ms(retention["RetainUntilDate"]))

    def set_lock(self, path: str, lock: ObjectLock) -> None:
        """Lock the newest version of an object, or extend its lock. ForbiddenError: it is locked for longer."""
        with self._asked("set_lock", path):
            self._client.put_object_retention(
                Bucket=self._name,
                Key=self._key(path),
                Retention={"Mode": lock.mode.upper(), "RetainUntilDate": _time(lock.until_ms)},
                ChecksumAlgorithm="CRC32",
            )

    # Writing

    def put(
        self, path: str, data: bytes, *, metadata: Mapping[str, str], lock: ObjectLock | None, conditional: bool
    ) -> None:
        condition = {"IfNoneMatch": "*"} if conditional else {}
        with self._asked("put" if conditional else "replace", path):
            self._client.put_object(
                Bucket=self._name,
                Key=self._key(path),
                Body=data,
                ChecksumCRC32C=_checksum(data),
                **condition,
                **self._attributes(metadata, lock),
            )

    def begin_upload(self, path: str, *, metadata: Mapping[str, str], lock: ObjectLock | None) -> str:
        """The id of a new upload in parts."""
        with self._asked("create", path):
            answer = self._client.create_multipart_upload(
                Bucket=self._name,
                Key=self._key(path),
                ChecksumAlgorithm="CRC32C",
                **self._attributes(metadata, lock),
            )
        return str(answer["UploadId"])

    def put_part(self, path: str, upload: str, number: int, data: bytes) -> dict[str, Any]:
        """What completing the upload must say of the part. A part may be sent again."""
        checksum = _checksum(data)
        with self._asked("create", path):
            answer = self._client.upload_part(
                Bucket=self._name,
                Key=self._key(path),
                UploadId=upload,
                PartNumber=number,
                Body=data,
                ChecksumCRC32C=checksum,
                **self._customer_key(),
            )
        kept = {"ChecksumCRC32C": checksum} if "ChecksumCRC32C" in answer else {}
        return {"PartNumber": number, "ETag": answer["ETag"], **kept}

    def complete_upload(self, path: str, upload: str, parts: Sequence[Mapping[str, Any]]) -> None:
        """Make the object visible, if the name is free: ObjectExistsError otherwise."""
        with self._asked("create", path):
            self._client.complete_multipart_upload(
                Bucket=self._name,
                Key=self._key(path),
                UploadId=upload,
                MultipartUpload={"Parts": list(parts)},
                IfNoneMatch="*",
                **self._customer_key(),
            )

    def abort_upload(self, path: str, upload: str) -> None:
        with self._asked("create", path):
            self._client.abort_multipart_upload(Bucket=self._name, Key=self._key(path), UploadId=upload)

    # Archive classes

    def ask_back(self, path: str, *, days: int, tier: str) -> None:
        """Have S3 make a copy of an object in an archive class that can be read, for some days.

        That takes minutes to two days. Nothing happens if it was asked before.
        """
        request = {"Days": days, "GlacierJobParameters": {"Tier": tier}}
        with self._asked("ask back", path):
            try:
                self._client.restore_object(Bucket=self._name, Key=self._key(path), RestoreRequest=request)
            except self._errors.ClientError as error:
                if error.response.get("Error", {}).get("Code") != "RestoreAlreadyInProgress":
                    raise

    def is_back(self, path: str) -> bool:
        """True if an object that was asked back can be read."""
        with self._asked("head", path):
            found = self._client.head_object(Bucket=self._name, Key=self._key(path), **self._customer_key())
        return 'ongoing-request="false"' in str(found.get("Restore", ""))

    # Versions

    def versions(self, folder: str = "") -> Iterator[ObjectVersion]:
        """Every version of every object, in the order of names, the newest version of each first."""
        prefix = f"{self._prefix}{folder}/" if folder else self._prefix
        marker: dict[str, str] = {}
        while True:
            with self._asked("list versions", folder):
                page = self._client.list_object_versions(Bucket=self._name, Prefix=prefix, **marker)
            found = [self._version(item, is_marker=False) for item in page.get("Versions", ())]
            found += [self._version(item, is_marker=True) for item in page.get("DeleteMarkers", ())]
            # The two lists are ordered, each for itself. A version is older than what comes before it in its own list;
            # between the lists the time decides, and the newest says so itself.
            order = {id(item): number for number, item in enumerate(found)}
            found.sort(key=lambda item: (item.path.encode(), not item.is_newest, -item.modified_ms, order[id(item)]))
            yield from found
            if not page.get("IsTruncated"):
                return
            marker = {"KeyMarker": page["NextKeyMarker"]}
            if page.get("NextVersionIdMarker"):
                marker["VersionIdMarker"] = page["NextVersionIdMarker"]

    def bring_back(self, version: ObjectVersion, *, lock: ObjectLock | None) -> None:
        """Make an older version the newest one, by a copy inside the store."""
        source = {"Bucket": self._name, "Key": self._key(version.path), "VersionId": version.version}
        extra: dict[str, Any] = {**self._lock(lock), **self._encryption()}
        if version.storage_class is not None:
            extra["StorageClass"] = version.storage_class
        if key := self._customer_key():
            extra |= {f"CopySource{name}": value for name, value in key.items()}
        with self._asked("bring back", version.path):
            self._client.copy(source, self._name, self._key(version.path), ExtraArgs=extra)

    def remove_version(self, version: ObjectVersion) -> None:
        """Delete one version or marker for good."""
        with self._asked("remove version", version.path):
            self._client.delete_object(Bucket=self._name, Key=self._key(version.path), VersionId=version.version)

    # Inside

    def _key(self, path: str) -> str:
        return f"{self._prefix}{path}"

    def _version(self, item: Mapping[str, Any], *, is_marker: bool) -> ObjectVersion:
        return ObjectVersion(
            path=str(item["Key"]).removeprefix(self._prefix),
            version=str(item["VersionId"]),
            modified_ms=_ms(item["LastModified"]),
            size=int(item.get("Size", 0)),
            etag=None if is_marker else str(item.get("ETag", "")).strip('"') or None,
            is_newest=bool(item["IsLatest"]),
            is_marker=is_marker,
            storage_class=item.get("StorageClass"),
        )

    def _attributes(self, metadata: Mapping[str, str], lock: ObjectLock | None) -> dict[str, Any]:
        settings = dict(metadata)
        storage_class = settings.pop("Storage-Class", None)
        given = {} if storage_class is None else {"StorageClass": storage_class}
        return {"Metadata": settings, **given, **self._lock(lock), **self._encryption()}

    @staticmethod
    def _lock(lock: ObjectLock | None) -> dict[str, Any]:
        if lock is None:
            return {}
        return {"ObjectLockMode": lock.mode.upper(), "ObjectLockRetainUntilDate": _time(lock.until_ms)}

    def _encryption(self) -> dict[str, Any]:
        options = self._settings
        if options.encryption is None or options.encryption == "sse-c":
            return self._customer_key()
        given: dict[str, Any] = {"ServerSideEncryption": options.encryption}
        if options.kms_key_id is not None:
            given["SSEKMSKeyId"] = options.kms_key_id
        if options.bucket_key is not None:
            given["BucketKeyEnabled"] = options.bucket_key
        return given

    def _customer_key(self) -> dict[str, Any]:
        if self._settings.customer_key is None:
            return {}
        key = base64.b64decode(self._settings.customer_key.get_secret_value())
        return {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}

    @contextmanager
    def _asked(self, operation: str, path: str) -> Iterator[None]:
        name = f"{self.url}/{path}" if path else self.url
        try:
            yield
        except self._errors.ClientError as error:
            raise _translated(error.response, operation, name) from None
        except (self._errors.NoCredentialsError, self._errors.PartialCredentialsError):
            raise AccessDeniedError(
                "no credentials were found for the storage",
                operation=operation,
                object_name=name,
                hint="give them in the configuration or the environment; 'maxbrod help storage' says how",
            ) from None
        except self._errors.BotoCoreError as error:
            raise UnavailableError(
                f"the storage did not answer: {type(error).__name__}",
                operation=operation,
                object_name=name,
                hint="try again; if it persists, check the storage and the network",
            ) from None


class _NoLockError(ObjectNotFoundError):
    """The object or the bucket has no lock."""


def no_object_lock(name: str, operation: str = "lock") -> RefusedError:
    return RefusedError(
        "the bucket has no Object Lock, so nothing in it can be locked",
        operation=operation,
        object_name=name,
        hint=NO_OBJECT_LOCK,
    )


def _translated(response: Mapping[str, Any], operation: str, name: str) -> MaxbrodError:
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code, message = (str(response.get("Error", {}).get(part, "")) for part in ("Code", "Message"))
    ours: MaxbrodError
    no_locks = code == "InvalidRequest" and _NO_OBJECT_LOCK.search(message) is not None
    if code in _NO_LOCK or (no_locks and operation == "lock_of"):
        ours = _NoLockError("it has no lock")
    elif code in _MISSING:
        ours = ObjectNotFoundError("there is no such object")
    elif code == "PreconditionFailed" or status == 412:
        ours = ObjectExistsError("the object already exists", hint="objects are never overwritten")
    elif no_locks:
        return no_object_lock(name, operation)
    else:
        # As obstore's messages show an answer, so that one table knows the codes of every store.
        return translate(ValueError(f"status code: {status} <Code>{code}</Code> {message}"), operation, name)
    ours.operation, ours.object_name = operation, name
    return ours


def _checksum(data: bytes) -> str:
    """S3 demands a checksum with every put into a locked bucket, and compares it."""
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def _mode(word: str) -> LockMode:
    return "compliance" if word.upper() == "COMPLIANCE" else "governance"


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def _time(time_ms: int) -> datetime:
    # Whole seconds, as S3 keeps them, and never earlier than what was asked for.
    return datetime.fromtimestamp(-(-time_ms // 1000), UTC)


def _botocore_errors() -> Any:  # noqa: ANN401 - a module without types
    try:
        import botocore.exceptions  # noqa: PLC0415 - an extra
    except ImportError:
        raise EnvironmentMissingError(
            "locks, versions and conditional uploads in parts need the package boto3",
            operation="open the bucket",
            hint="pip install 'maxbrod[aws]', on the executors of a Spark cluster too",
        ) from None
    return botocore.exceptions


_OPENING: Final = threading.Lock()


def _client(options: S3Config, *, ca_file: str | None, timeout_s: float) -> Any:  # noqa: ANN401 - as above
    _botocore_errors()
    with _OPENING:
        return _cached_client(options, ambient_s3(options), ca_file, timeout_s)


@lru_cache(maxsize=16)
def _cached_client(options: S3Config, ambient: Ambient, ca_file: str | None, timeout_s: float) -> Any:  # noqa: ANN401
    """A client takes a tenth of a second to make, and any number of threads may use it."""
    import boto3.session  # noqa: PLC0415 - an extra
    from botocore.config import Config  # noqa: PLC0415

    secrets = {
        "aws_access_key_id": _plain(options.access_key_id) or ambient.access_key_id,
        "aws_secret_access_key": _plain(options.secret_access_key) or ambient.secret_access_key,
        "aws_session_token": _plain(options.session_token) or ambient.session_token,
    }
    return boto3.session.Session().client(
        "s3",
        endpoint_url=ambient.endpoint,
        region_name=ambient.region or "us-east-1",
        verify=ca_file,
        config=Config(
            s3={"addressing_style": "path" if options.path_style else "virtual"},
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            max_pool_connections=_POOL,
            # Our own retries know what may be repeated; and only checksums that we give are sent.
            retries={"total_max_attempts": 1},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
        **secrets,
    )


def _plain(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


class WriteGuard:
    """The writes of an archive in S3 that must not be changed: objects are locked, and no upload overwrites one.

    If the bucket locks every object by itself, for long enough, puts do not ask for it: a writer then needs no right to
    set locks.
    """

    def __init__(self, bucket: Bucket, *, rule: LockRule | None) -> None:
        self.bucket = bucket
        self._rule = rule
        self._asks: bool | None = None

    def lock(self) -> ObjectLock | None:
        """The lock of a put that is sent now; None: it asks for none. RefusedError: the bucket cannot lock."""
        if self._rule is None:
            return None
        if self._asks is None:
            try:
                locking = self.bucket.locking()
            except ForbiddenError:
                self._asks = True  # who may not read the bucket's settings may still lock
            else:
                if not locking.enabled:
                    raise no_object_lock(self.bucket.url)
                self._asks = not locking.satisfies(self._rule)
        return self._rule.at(now_ms()) if self._asks else None

"""The entry point: opens a `Storage` for a URL and its options, and probes what a store does.

Opening creates nothing but the folder of `memory://`, and reads nothing but the keys of an encrypted archive.
"""

from __future__ import annotations

import os
import stat
import tempfile
import uuid
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from maxbrod.board import seat_of_task, stop_of_task
from maxbrod.config import AzureConfig, EncryptionConfig, GcsConfig, S3Config, StorageConfig
from maxbrod.errors import AccessDeniedError, MaxbrodError, ObjectExistsError, RefusedError, UsageError
from maxbrod.storage.bucket import Bucket, LockRule, WriteGuard
from maxbrod.storage.composed import CountedStorage, CreateOnlyStorage, JoinedStorage, is_joined
from maxbrod.storage.interface import KEYS, SEAL, Storage
from maxbrod.storage.local import LocalStorage
from maxbrod.storage.remote import Clients, RemoteStorage, RetryPolicy
from maxbrod.storage.settings import client_of, settings_of
from maxbrod.storage.urls import Location, parse_url

if TYPE_CHECKING:
    from collections.abc import Buffer

_SECTIONS: Final = {"s3": ("s3", S3Config()), "gs": ("gcs", GcsConfig()), "az": ("azure", AzureConfig())}
_MEMORY_FILE_SYSTEM: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own in it, checked to be ours


def open_storage(url: str, options: StorageConfig | None = None) -> Storage:
    """The storage at a URL; a plain path is a local directory. UsageError: the URL or an option is invalid.

    A storage that a task opens counts there what is read through it, and reads nothing after a stop.
    """
    options = options or StorageConfig()
    storage = open_plain(url, options)
    if options.encryption.given:
        storage = _with_keys(storage, options.encryption)
    storage.signing = None if options.signing.key_file is None else options.signing
    return storage


def open_plain(url: str, options: StorageConfig) -> Storage:
    """The storage at a URL with the bytes that it really holds, also if the archive is encrypted."""
    storage, seat = _open_alone(url, options), seat_of_task()
    return storage if seat is None else CountedStorage(storage, seat)


def _with_keys(storage: Storage, keys: EncryptionConfig) -> Storage:
    """The storage as it is if the archive is not encrypted. One request more, or two."""
    # Loads cryptography, which plain archives do without.
    from maxbrod.storage.sealing.sealed import Keyring, SealedStorage, find_ring  # noqa: PLC0415

    ring = None if is_joined(storage.url) else find_ring(storage)
    return storage if ring is None else SealedStorage(storage, Keyring(storage, ring, keys))


def encrypted(storage: Storage, keys: EncryptionConfig) -> Storage:
    """The storage of a new archive, which is encrypted for the keys."""
    from maxbrod.storage.sealing.sealed import encrypted_for  # noqa: PLC0415 - as above

    made = encrypted_for(storage, keys)
    made.signing = storage.signing
    return made


def is_sealed(data: Buffer) -> bool:
    """True if these are bytes of an encrypted archive that was opened without its keys."""
    return bytes(memoryview(data)[: len(SEAL)]) == SEAL


def is_locked(storage: Storage) -> bool:
    """True if it is the storage of an encrypted archive that was opened without a key. One request."""
    return not storage.encrypted and next(iter(storage.list(KEYS)), None) is not None


def locked(storage: Storage) -> MaxbrodError:
    """The error for an encrypted archive that was opened without a key."""
    from maxbrod.storage.sealing.sealed import without_key  # noqa: PLC0415 - as above

    return without_key(storage)


def _open_alone(url: str, options: StorageConfig) -> Storage:
    if is_joined(url):
        return JoinedStorage(url)
    location = parse_url(url)
    storage = _open_place(location, options)
    return CreateOnlyStorage(storage) if options.create_only else storage


def _open_place(location: Location, options: StorageConfig) -> Storage:
    if location.scheme in {"file", "memory"}:
        refuse_foreign_options(location, options)
        return LocalStorage(directory_of(location), url=location.url, shared=options.shared)
    storage_class = options.s3.storage_class
    return RemoteStorage(
        location.url,
        open_clients(location, options),
        retries=RetryPolicy(deadline_s=options.deadline_s, stop=stop_of_task()),
        attributes={} if storage_class is None else {"Storage-Class": storage_class},
        guard=_guard(location, options),
    )


def _guard(location: Location, options: StorageConfig) -> WriteGuard | None:
    """What S3 needs beyond obstore for objects that must not be changed; None: nothing."""
    if location.scheme != "s3" or not (options.create_only or options.lock is not None):
        return None
    rule = None
    if options.lock is not None:
        rule = LockRule(mode=options.lock_mode, period_ms=int(options.lock * 1000))
    return WriteGuard(Bucket(location, options), rule=rule)


def open_bucket(url: str, options: StorageConfig | None = None) -> Bucket | None:
    """The bucket of a URL, for locks and versions; None: it is not in S3. EnvironmentMissingError: boto3 is missing."""
    location = None if is_joined(url) else parse_url(url)
    if location is None or location.scheme != "s3":
        return None
    return Bucket(location, options or StorageConfig())


def open_clients(location: Location, options: StorageConfig) -> Clients:
    """Clients for a location. No request is sent."""
    refuse_foreign_options(location, options)
    backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2}
    patience = {"max_retries": 1000, "retry_timeout": timedelta(seconds=options.deadline_s), "backoff": backoff}
    try:
        return Clients(once=_open(location, options, {"max_retries": 0}), patient=_open(location, options, patience))
    except (BaseError, ValueError):
        # obstore's message quotes the option, which may be a secret key.
        raise UsageError(
            "the storage cannot be opened with these options",
            object_name=location.url,
            hint="check the keys, the endpoint and the certificates in the configuration and in the environment",
        ) from None


def refuse_foreign_options(location: Location, options: StorageConfig) -> None:
    """Refuse options for another cloud than the URL's: ignoring them could leave data unencrypted or unlocked."""
    if options.lock is not None and location.scheme != "s3":
        raise UsageError(
            f"storage.lock is for s3://, and cannot be used with {location.scheme}://",
            object_name=location.url,
            hint="remove it; on Google and Azure a retention policy of the bucket locks every object",
        )
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
        "client_options": client_of(location, options),
        "retry_config": retries,
        **settings_of(location, options),
    }
    if location.scheme == "s3":
        return S3Store(location.bucket, **settings)
    if location.scheme == "gs":
        return GCSStore(location.bucket, **settings)
    return AzureStore(location.bucket, **settings)


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


def probe_conditional_puts(storage: Storage) -> bool:
    """False: the store overwrites silently, and two writers of one archive would overwrite each other's commits.

    Creates one object of a few bytes twice and deletes it. A storage that deletes nothing has one such object, which
    the next probe meets: that proves as much.
    """
    name = f"probes/{'kept' if storage.creates_only else uuid.uuid4().hex}"
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

"""Every kind of storage that can be run here, opened the way users open it."""

# ruff: noqa: PLC0415 - a run that needs no storage must not pay for importing it, nor break with it

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from support.clouds import KINDS, cloud_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from deltalake import DeltaTable

    from maxbrod.config import EncryptionConfig, StorageConfig
    from maxbrod.sandbox.s3 import LyingS3Server, S3Server
    from maxbrod.storage.interface import Storage


def s3_section(server: S3Server | LyingS3Server, *, s3: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """The section `storage` of a configuration, with its secrets.

    `s3` are settings of that section, such as the endpoint of a proxy; `options` those beside it.
    """
    keys = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    return {"s3": {"endpoint": server.endpoint, "region": server.region, **keys, **(s3 or {})}, **options}


def s3_options(server: S3Server | LyingS3Server, **section: Any) -> StorageConfig:
    from maxbrod.config import StorageConfig

    return StorageConfig.model_validate(s3_section(server, **section))


def delete_all(storage: Storage, paths: Iterable[str]) -> None:
    """Delete objects; ForbiddenError: the storage holds one of them."""
    from maxbrod.errors import ForbiddenError

    for item in storage.delete(paths):
        raise ForbiddenError(item.reason, object_name=item.path, hint=item.hint)


def delta_table(url: str, options: StorageConfig) -> DeltaTable:
    """The catalog as any other program opens it, with delta-rs's own client."""
    from deltalake import DeltaTable

    from maxbrod.storage.stores import directory_of
    from maxbrod.storage.urls import parse_url

    location = parse_url(url)
    if location.scheme in {"file", "memory"}:
        return DeltaTable(directory_of(location) / "catalog/segments")
    settings = delta_settings(location.scheme, options)
    return DeltaTable(f"{url}/catalog/segments", storage_options=settings)


def delta_settings(scheme: str, options: StorageConfig) -> dict[str, str]:
    """The options in delta-rs's own words."""
    s3, azure, gcs = options.s3, options.azure, options.gcs
    given: dict[str, dict[str, SecretStr | str | Path | None]] = {
        "s3": {
            "aws_access_key_id": s3.access_key_id,
            "aws_secret_access_key": s3.secret_access_key,
            "aws_endpoint_url": s3.endpoint,
            "aws_region": s3.region,
        },
        "az": {
            "azure_storage_account_name": azure.account,
            "azure_storage_account_key": azure.account_key,
            "azure_storage_endpoint": azure.endpoint,
        },
        # Its endpoint is in the key file.
        "gs": {"google_service_account": gcs.credentials_file},
    }
    plain = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        for name, value in given[scheme].items()
        if value is not None
    }
    return {**plain, "allow_http": "true"}


@pytest.fixture(scope="session", autouse=True)
def syncs_are_believed() -> Iterator[None]:
    """No test cuts the power, so that nothing in this process waits for the disk: tests make thousands of archives.

    Which files are synced, and when, is tested where `os.fsync` is replaced once more. Programs of their own really
    sync.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@contextmanager
def fresh_memory() -> Iterator[str]:
    """A memory that nobody else has, gone afterwards: it would outlive the process."""
    from maxbrod.storage.stores import directory_of
    from maxbrod.storage.urls import parse_url

    url = f"memory://test-{uuid.uuid4().hex}"
    try:
        yield url
    finally:
        shutil.rmtree(directory_of(parse_url(url)), ignore_errors=True)


@contextmanager
def fresh_storage() -> Iterator[Storage]:
    """An empty storage in memory, also for each example of a property: a disk would sync each of their objects."""
    from maxbrod.storage.stores import open_storage

    with fresh_memory() as url:
        yield open_storage(url)


@pytest.fixture
def memory_url() -> Iterator[str]:
    with fresh_memory() as url:
        yield url


@pytest.fixture(scope="session")
def shelf() -> Iterator[Callable[[], Storage]]:
    """Gives an empty storage in memory each time it is called."""
    from maxbrod.storage.stores import open_storage

    with fresh_memory() as url:
        yield lambda: open_storage(f"{url}/{uuid.uuid4().hex}")


@pytest.fixture
def memory_storage(shelf: Callable[[], Storage]) -> Storage:
    return shelf()


def sealing_keys() -> EncryptionConfig:
    """The keys of a new encrypted archive."""
    from maxbrod.config import EncryptionConfig
    from maxbrod.storage.sealing.identity import new_identity

    return EncryptionConfig(secret_key=SecretStr(new_identity().private_text))


@pytest.fixture(params=["local", "memory", "sealed", *KINDS])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty storage of each kind, below a prefix where there is such a thing."""
    from maxbrod.storage.stores import open_storage

    if request.param == "local":
        return open_storage(str(tmp_path / "archive"))
    if request.param == "memory":
        return open_storage(request.getfixturevalue("memory_url"))
    if request.param == "sealed":
        from maxbrod.storage.stores import encrypted

        return encrypted(open_storage(str(tmp_path / "archive")), sealing_keys())
    return cloud_of(request, request.param).open()

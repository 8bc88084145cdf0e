"""Every kind of storage that can be run here, opened the way users open it."""

# ruff: noqa: PLC0415 - a run that needs no storage must not pay for importing it, nor break with it

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltalake import DeltaTable

    from maxbrod.config import StorageConfig
    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import LyingS3Server, S3Server
    from maxbrod.storage.interface import Storage


def s3_options(server: S3Server | LyingS3Server, *, s3: dict[str, Any] | None = None, **options: Any) -> StorageConfig:
    from maxbrod.config import StorageConfig

    keys = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    section = {"endpoint": server.endpoint, "region": server.region, **keys, **(s3 or {})}
    return StorageConfig.model_validate({"s3": section, **options})


def delta_table(url: str, options: StorageConfig) -> DeltaTable:
    """The catalog as any other program opens it, with delta-rs's own client."""
    from deltalake import DeltaTable

    from maxbrod.storage.stores import directory_of
    from maxbrod.storage.urls import parse_url

    location = parse_url(url)
    if location.scheme in {"file", "memory"}:
        return DeltaTable(directory_of(location) / "catalog/segments")
    keys = {"access_key_id": options.s3.access_key_id, "secret_access_key": options.s3.secret_access_key}
    settings = {f"aws_{name}": value.get_secret_value() for name, value in keys.items() if value is not None}
    settings |= {"aws_endpoint_url": options.s3.endpoint or "", "aws_region": options.s3.region or ""}
    return DeltaTable(f"{url}/catalog/segments", storage_options={**settings, "aws_allow_http": "true"})


@pytest.fixture
def memory_url() -> Iterator[str]:
    """A memory of its own for each test, gone afterwards: it would outlive the process."""
    from maxbrod.storage.stores import directory_of
    from maxbrod.storage.urls import parse_url

    url = f"memory://test-{uuid.uuid4().hex}"
    yield url
    shutil.rmtree(directory_of(parse_url(url)), ignore_errors=True)


@pytest.fixture(params=["local", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty storage of each kind, below a prefix where there is such a thing."""
    from maxbrod.storage.stores import open_storage

    if request.param == "local":
        return open_storage(str(tmp_path / "archive"))
    if request.param == "memory":
        return open_storage(request.getfixturevalue("memory_url"))
    server = request.getfixturevalue("s3")
    return open_storage(f"{server.url}/some/prefix", s3_options(server))


@pytest.fixture
def s3_storage(s3: S3Server) -> Storage:
    """Straight to `s3`, around the proxy."""
    from maxbrod.storage.stores import open_storage

    return open_storage(s3.url, s3_options(s3))


@pytest.fixture
def proxied_storage(s3: S3Server, s3_proxy: FaultProxy) -> Storage:
    """Through `s3_proxy`: hears soon that a request hangs, and is patient, for faults that pass."""
    from maxbrod.storage.stores import open_storage

    options = s3_options(s3, s3={"endpoint": s3_proxy.endpoint}, request_timeout_s=2, deadline_s=60)
    return open_storage(s3.url, options)


@pytest.fixture
def hasty_storage(s3: S3Server, s3_proxy: FaultProxy) -> Storage:
    """Through `s3_proxy`, soon out of patience, for faults that last."""
    from maxbrod.storage.stores import open_storage

    options = s3_options(s3, s3={"endpoint": s3_proxy.endpoint}, request_timeout_s=2, deadline_s=3)
    return open_storage(s3.url, options)

"""The object stores that can be run here, alike for a test: S3 anew for each, Azure and Google once for a whole run."""

# ruff: noqa: PLC0415 - a run that needs no store must not pay for importing it, nor break with it

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.config import StorageConfig
    from maxbrod.sandbox.azure import AzureServer
    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.storage.interface import Storage
    from support.gcs import GcsDouble

Kind = Literal["s3", "azure", "gcs"]
KINDS: tuple[Kind, ...] = ("s3", "azure", "gcs")


class Server(Protocol):
    """What this module needs of a server."""

    @property
    def url(self) -> str: ...
    @property
    def address(self) -> tuple[str, int]: ...
    def storage_section(self, *, endpoint: str | None = None) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Cloud:
    """A place of its own in a store."""

    kind: Kind
    server: Server
    url: str

    def section(self, *, endpoint: str | None = None, **options: Any) -> dict[str, Any]:
        """The section `storage` of a configuration; `endpoint` leads through a proxy."""
        return {**self.server.storage_section(endpoint=endpoint), **options}

    def config(self, *, endpoint: str | None = None, **options: Any) -> StorageConfig:
        from maxbrod.config import StorageConfig

        return StorageConfig.model_validate(self.section(endpoint=endpoint, **options))

    def open(self, *, endpoint: str | None = None, **options: Any) -> Storage:
        from maxbrod.storage.stores import open_storage

        return open_storage(self.url, self.config(endpoint=endpoint, **options))


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """Azurite takes a second to start, so all tests share it; each has a place of its own in it."""
    from maxbrod.sandbox.azure import AzureServer

    with AzureServer.start(tmp_path_factory.mktemp("azurite") / "azure") as server:
        yield server


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsDouble]:
    from support.gcs import gcs_double

    with gcs_double(tmp_path_factory.mktemp("gcs")) as double:
        yield double


def cloud_of(request: pytest.FixtureRequest, kind: Kind) -> Cloud:
    """An empty place in a store of this kind."""
    server: Server = request.getfixturevalue({"s3": "s3", "azure": "azurite", "gcs": "gcs"}[kind])
    return Cloud(kind, server, f"{server.url}/some/{uuid.uuid4().hex[:8]}")


@pytest.fixture(params=KINDS)
def cloud(request: pytest.FixtureRequest) -> Cloud:
    return cloud_of(request, request.param)


@pytest.fixture
def cloud_proxy(cloud: Cloud) -> Iterator[FaultProxy]:
    """A proxy before `cloud` that breaks nothing yet."""
    from maxbrod.sandbox.proxy.server import FaultProxy

    with FaultProxy(cloud.server.address, protocol="http") as proxy:
        yield proxy


@pytest.fixture
def direct_storage(cloud: Cloud) -> Storage:
    """Straight to `cloud`, around the proxy."""
    return cloud.open()


@pytest.fixture
def proxied_storage(cloud: Cloud, cloud_proxy: FaultProxy) -> Storage:
    """Through `cloud_proxy`: hears soon that a request hangs, and is patient, for faults that pass."""
    return cloud.open(endpoint=cloud_proxy.endpoint, request_timeout_s=2, deadline_s=60)


@pytest.fixture
def hasty_storage(cloud: Cloud, cloud_proxy: FaultProxy) -> Storage:
    """Through `cloud_proxy`, soon out of patience, for faults that last."""
    return cloud.open(endpoint=cloud_proxy.endpoint, request_timeout_s=2, deadline_s=3)

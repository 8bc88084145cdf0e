"""Archives to test on, and what to say to reach them: picklable, so that other processes can, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maxbrod.catalog.catalog import Catalog
from maxbrod.config import StorageConfig
from maxbrod.storage.stores import open_storage
from support.storages import delta_table

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from maxbrod.sandbox.s3 import LyingS3Server, S3Server
    from maxbrod.storage.interface import Storage


@dataclass(frozen=True, slots=True)
class Archive:
    url: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> StorageConfig:
        return StorageConfig.model_validate(self.options)

    @property
    def storage(self) -> Storage:
        return open_storage(self.url, self.config)

    def create(self) -> Catalog:
        return Catalog.create(self.storage)

    def open(self) -> Catalog:
        return Catalog.open(self.storage)

    def table(self) -> DeltaTable:
        return delta_table(self.url, self.config)


def s3_archive(server: S3Server | LyingS3Server, *, s3: dict[str, Any] | None = None, **options: Any) -> Archive:
    """`s3` are settings of that section, such as the endpoint of a proxy; `options` those beside it."""
    keys = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    section = {"endpoint": server.endpoint, "region": server.region, **keys, **(s3 or {})}
    return Archive(f"{server.url}/archive", {"s3": section, **options})

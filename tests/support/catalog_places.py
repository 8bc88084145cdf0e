"""Archives to test on, and what to say to reach them: picklable, so that other processes can, too."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maxbrod.catalog.catalog import Catalog
from maxbrod.config import StorageConfig
from maxbrod.storage.stores import open_storage
from support.processes import environment, program
from support.storages import delta_table, s3_section

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from maxbrod.sandbox.s3 import LyingS3Server, S3Server
    from maxbrod.storage.interface import Storage
    from support.clouds import Cloud


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


def cloud_archive(cloud: Cloud, *, endpoint: str | None = None, **options: Any) -> Archive:
    return Archive(f"{cloud.url}/archive", cloud.section(endpoint=endpoint, **options))


def s3_archive(server: S3Server | LyingS3Server, **section: Any) -> Archive:
    return Archive(f"{server.url}/archive", s3_section(server, **section))


def start_writer(verb: str, archive: Archive, argument: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        program("catalog_writers", verb, archive.url, json.dumps(archive.options), argument),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def hear(writer: subprocess.Popen[str]) -> str:
    assert writer.stdout is not None
    return writer.stdout.readline().strip()

"""Archives to test on, and what to say to reach them: picklable, so that other processes can, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fixtures_storage import s3_options
from maxbrod.catalog.catalog import Catalog
from maxbrod.storage.delta import delta_options

if TYPE_CHECKING:
    from maxbrod.sandbox.s3 import LyingS3Server, S3Server


@dataclass(frozen=True, slots=True)
class Archive:
    url: str
    options: dict[str, str] = field(default_factory=dict)

    def create(self) -> Catalog:
        return Catalog.create(self.url, self.options)

    def open(self) -> Catalog:
        return Catalog.open(self.url, self.options)


def s3_archive(server: S3Server | LyingS3Server, *, endpoint: str | None = None) -> Archive:
    """`endpoint` leads through a proxy."""
    url = f"{server.url}/archive"
    options = s3_options(server, s3={"endpoint": endpoint} if endpoint else None)
    return Archive(url, delta_options(url, options))

"""A real S3 server in a box, with its objects as plain files in a folder.

`S3Server` is versitygw, which keeps S3's promises, including conditional puts. `LyingS3Server` is rclone, which
answers a conditional put with 200 and overwrites: such a store must never hold an archive.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, ClassVar, Final

from maxbrod.sandbox.process import HOST
from maxbrod.sandbox.programs import rclone, versitygw
from maxbrod.sandbox.store_server import StoreServer


class _S3(StoreServer):
    """`objects_dir/<bucket>/<key>` is the object itself, which tests can read and damage."""

    kind: ClassVar[str] = "s3"
    scheme: ClassVar[str] = "s3"
    region: Final = "us-east-1"

    @property
    def _metadata_dir(self) -> Path:
        return self.directory / "metadata"

    def object_path(self, key: str) -> Path:
        """The file that is the object."""
        return self.objects_dir / self.bucket / key

    def store_options(self, *, endpoint: str | None = None) -> dict[str, Any]:
        return {
            "bucket": self.bucket,
            "endpoint": endpoint or self.endpoint,
            "region": self.region,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "virtual_hosted_style_request": False,
            "client_options": {"allow_http": True},
        }

    def storage_section(self, *, endpoint: str | None = None) -> dict[str, Any]:
        keys = {"access_key_id": self.access_key, "secret_access_key": self.secret_key}
        return {"s3": {"endpoint": endpoint or self.endpoint, "region": self.region, **keys}}

    def variables(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region,
            "AWS_ALLOW_HTTP": "true",
        }

    def _prepare(self) -> None:
        (self.objects_dir / self.bucket).mkdir()
        self._metadata_dir.mkdir()


class S3Server(_S3):
    """versitygw: conditional puts, multipart uploads and checksums as in S3."""

    @staticmethod
    def _command() -> list[str]:
        return [str(versitygw())]

    def _arguments(self) -> list[str]:
        # An extended attribute becomes visible together with its object, a sidecar file does not, which matters under
        # `kill -9`. But not every file system has attributes.
        sidecar = [] if _has_attributes(self.directory) else ["--sidecar", str(self._metadata_dir)]
        return ["--quiet", "posix", *sidecar, str(self.objects_dir)]

    def _environment(self) -> dict[str, str]:
        return {
            "ROOT_ACCESS_KEY_ID": self.access_key,
            "ROOT_SECRET_ACCESS_KEY": self.secret_key,
            "VGW_PORT": f"{HOST}:{self.port}",
            "VGW_REGION": self.region,
            "VGW_KEEP_ALIVE": "true",
        }


class LyingS3Server(_S3):
    """rclone: silently ignores If-None-Match and If-Match on a put."""

    @staticmethod
    def _command() -> list[str]:
        return [str(rclone())]

    def _arguments(self) -> list[str]:
        return ["serve", "s3", "--addr", f"{HOST}:{self.port}", str(self.objects_dir)]

    def _environment(self) -> dict[str, str]:
        return {
            "RCLONE_CONFIG": os.devnull,
            # A CSV list with one entry, which contains a comma: hence the quotes.
            "RCLONE_AUTH_KEY": f'"{self.access_key},{self.secret_key}"',
        }


def _has_attributes(folder: Path) -> bool:
    if sys.platform != "linux":
        return False
    try:
        os.setxattr(folder, "user.maxbrod", b"1")
    except OSError:
        return False
    return True

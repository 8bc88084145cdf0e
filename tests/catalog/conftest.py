"""An archive in a folder, and the same on S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.catalog_places import Archive, s3_archive

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["folder", "s3"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    """A place for an archive that does not exist yet."""
    if request.param == "s3":
        return s3_archive(request.getfixturevalue("s3"))
    return Archive(str(tmp_path / "archive"))


@pytest.fixture
def folder(tmp_path: Path) -> Archive:
    return Archive(str(tmp_path / "archive"))

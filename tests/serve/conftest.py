"""One archive with everything in it for all tests of the dashboard: making it takes seconds, and nothing changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.config import Config
from maxbrod.serve.shelf import Shelf
from support.shown_archives import ShownArchive, make_shown

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="package")
def shown(tmp_path_factory: pytest.TempPathFactory) -> ShownArchive:
    return make_shown(tmp_path_factory.mktemp("shown") / "shop")


@pytest.fixture(scope="package")
def shelf(shown: ShownArchive, tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """Read once, and kept up to date by nobody."""
    nowhere: Path = tmp_path_factory.mktemp("nowhere") / "nothing"
    made = Shelf([shown.url, str(nowhere)], Config(), every_s=3600)
    made.renew()
    return made

"""Storages in memory: hypothesis makes hundreds of archives, and a disk would sync each of their objects."""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING

import pytest

from maxbrod.storage.stores import directory_of, open_storage
from maxbrod.storage.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maxbrod.storage.interface import Storage


@pytest.fixture(scope="session")
def shelf() -> Iterator[Callable[[], Storage]]:
    """Gives an empty storage each time it is called."""
    url = f"memory://test-{uuid.uuid4().hex}"
    yield lambda: open_storage(f"{url}/{uuid.uuid4().hex}")
    shutil.rmtree(directory_of(parse_url(url)), ignore_errors=True)


@pytest.fixture
def storage(shelf: Callable[[], Storage]) -> Storage:
    return shelf()

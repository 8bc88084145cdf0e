"""One Spark session for the entire run of the tests. What needs other settings runs in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.work.session import open_session

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    with open_session() as session:
        yield session

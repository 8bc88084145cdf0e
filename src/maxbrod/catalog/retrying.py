"""Commits of changes that do not depend on who comes first: if another writer was faster, on its version."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from maxbrod.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.catalog.catalog import Catalog

_ATTEMPTS: Final = 20
"""How often to commit while others commit to the same archive. A backup that follows commits once a second."""
_PAUSE_S: Final = 0.05
Result = TypeVar("Result")


def commit_with_retries(catalog: Catalog, commit: Callable[[int], Result]) -> Result:
    """The result of `commit`, which commits once, on the version that the catalog stands at.

    It gets the number of the attempt, from 0. If another writer was faster, the catalog is read again, and `commit`
    called again: whatever it has read of the catalog, and all holds, it must read again. RefusedError: refused for
    another reason, or too often.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return commit(attempt)
        except RefusedError:
            # Refused for another reason than an overtaking commit: trying again would not help.
            if catalog.is_newest() or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_S * attempt)
            catalog.refresh()
    raise AssertionError

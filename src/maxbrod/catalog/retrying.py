"""Commits of changes that do not depend on who comes first: if another writer was faster, on its version."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final, TypeVar

from maxbrod.errors import OvertakenError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.catalog.catalog import Catalog

_ATTEMPTS: Final = 20
"""How often to try without progress: refused for another reason, or nobody has committed since."""
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
Result = TypeVar("Result")


def commit_with_retries(catalog: Catalog, commit: Callable[[int], Result]) -> Result:
    """The result of `commit`, which commits once, on the version that the catalog stands at.

    It gets the number of the attempt, from 0. If another writer was faster, the catalog is read again, and `commit`
    called again, however often: whatever it has read of the catalog, and all holds, it must read again. A backup that
    follows never ends, and commits once a second: pass `still_valid` to `Catalog.commit` from the second attempt on, so
    that a commit that takes longer than that succeeds beside it. RefusedError: refused for another reason.
    """
    attempt = fruitless = 0
    while True:
        try:
            return commit(attempt)
        except RefusedError as error:
            fruitless += not isinstance(error, OvertakenError)
            if catalog.is_newest() or fruitless >= _ATTEMPTS:
                raise
            # Two that overtake each other must not do so in step.
            time.sleep(min(_PAUSE_S * attempt, _PAUSE_S_MAX) * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            version = catalog.version
            catalog.refresh()
            fruitless += catalog.version == version
            attempt += 1

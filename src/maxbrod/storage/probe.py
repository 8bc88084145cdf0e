"""Tests whether a store honours conditional puts, on which every commit depends: a taken name stays taken."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from maxbrod.errors import ObjectExistsError

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage


def probe_conditional_puts(storage: Storage) -> bool:
    """False: the store overwrites silently, and two writers of one archive would overwrite each other's commits.

    Creates one object of a few bytes twice and deletes it.
    """
    name = f"probes/{uuid.uuid4().hex}"
    try:
        storage.put(name, b"first")
        storage.put(name, b"second")
    except ObjectExistsError:
        return True
    finally:
        storage.delete([name])
    return False

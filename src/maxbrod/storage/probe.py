"""Finds out whether a store keeps the promise that everything else rests on: a name that is taken stays taken."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from maxbrod.errors import ObjectExistsError

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage


def probe_conditional_puts(storage: Storage) -> bool:
    """False: the store overwrites silently, and two writers of one archive would not notice each other.

    Creates one object of a few bytes twice, and removes it.
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

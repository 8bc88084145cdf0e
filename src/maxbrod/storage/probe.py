"""Small objects that tell what a store does: whether a taken name stays taken, and what time it is there."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from maxbrod.errors import AccessDeniedError, ObjectExistsError

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


def probe_clock_ms(storage: Storage) -> int:
    """The time with which the store stamps an object written now. StorageFullError: it takes none."""
    name = f"probes/{uuid.uuid4().hex}"
    try:
        storage.put(name, b"what time is it?")
        return storage.head(name).modified_ms
    finally:
        # Who may only add and read may ask too: what stays behind, `gc` finds.
        with suppress(AccessDeniedError):
            storage.delete([name])

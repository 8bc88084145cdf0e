"""Opens an archive for writing: its objects and its catalog together, made where there is nothing yet.

Makes sure of what every commit rests on: a store that keeps conditional puts, and a place that is an archive already
or empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.table import is_leftover, no_archive
from maxbrod.errors import CorruptDataError, RefusedError
from maxbrod.storage.opening import open_storage
from maxbrod.storage.probe import probe_conditional_puts

if TYPE_CHECKING:
    from maxbrod.config import StorageConfig
    from maxbrod.storage.interface import Storage


def open_writable(url: str, options: StorageConfig, *, single_writer: bool = False) -> tuple[Storage, Catalog]:
    """RefusedError: the store ignores conditional puts and `single_writer` does not vouch that nobody else writes, or
    there are objects of others. CorruptDataError: this is an archive that lost its catalog.
    """
    storage = open_storage(url, options)
    catalog = Catalog.find(storage)
    if catalog is None:
        _refuse_foreign_objects(storage)
    if not probe_conditional_puts(storage) and not single_writer:
        raise RefusedError(
            "the store ignores conditional puts: two writers would overwrite each other's commits",
            operation="open for writing",
            object_name=storage.url,
            hint="use another store, or make sure that nobody else ever writes to this archive and say --single-writer",
        )
    return storage, catalog or _created(storage)


def _created(storage: Storage) -> Catalog:
    try:
        return Catalog.create(storage)
    except RefusedError:
        # Somebody else was faster; from here on it is like any other archive.
        return Catalog.open(storage)


def _refuse_foreign_objects(storage: Storage) -> None:
    """A catalog beside objects that it does not name would make garbage of them, and `gc` would delete them."""
    error = no_archive(storage)
    if isinstance(error, CorruptDataError):
        raise error
    for found in storage.list():
        if not is_leftover(found.path):
            raise RefusedError(
                "there are objects here, but no catalog of an archive",
                operation="open for writing",
                object_name=storage.name_of(found.path),
                hint="name an empty place",
            )

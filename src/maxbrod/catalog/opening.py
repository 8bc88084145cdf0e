"""Opens an archive for writing: its storage and its catalog, which is created in an empty place.

Checks the preconditions of every commit: the store honours conditional puts, and the place is an archive or empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.table import is_leftover, no_archive
from maxbrod.errors import CorruptDataError, RefusedError
from maxbrod.storage.opening import open_storage
from maxbrod.storage.probe import probe_conditional_puts

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.config import StorageConfig
    from maxbrod.storage.interface import Storage


def open_writable(
    url: str,
    options: StorageConfig,
    *,
    single_writer: bool = False,
    before_creating: Callable[[], object] = lambda: None,
) -> tuple[Storage, Catalog]:
    """`before_creating` is called if there is no catalog yet; if it raises, none is created.

    RefusedError: the store ignores conditional puts and `single_writer` does not promise that nobody else writes, or
    there are foreign objects. CorruptDataError: this is an archive that has lost its catalog.
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
            hint="use another store, or make sure that nobody else writes to this archive and pass --single-writer",
        )
    if catalog is None:
        before_creating()
    return storage, catalog or _created(storage)


def _created(storage: Storage) -> Catalog:
    try:
        return Catalog.create(storage)
    except RefusedError:
        # Another writer has created it first.
        return Catalog.open(storage)


def _refuse_foreign_objects(storage: Storage) -> None:
    """Objects beside a new catalog would be garbage that no row names, and `gc` would delete them."""
    error = no_archive(storage)
    if isinstance(error, CorruptDataError):
        raise error
    for info in storage.list():
        if not is_leftover(info.path):
            raise RefusedError(
                "there are objects here, but no catalog of an archive",
                operation="open for writing",
                object_name=storage.name_of(info.path),
                hint="name an empty place",
            )

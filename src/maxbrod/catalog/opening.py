"""Opens an archive for writing: its objects and its catalog together, made where there is nothing yet.

Makes sure of what every commit rests on: a store that keeps conditional puts, and a place that is an archive already
or empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.table import TABLE_FOLDER
from maxbrod.errors import RefusedError, UsageError
from maxbrod.storage.delta import delta_options, delta_url, make_table_folder
from maxbrod.storage.opening import open_storage
from maxbrod.storage.probe import probe_conditional_puts

if TYPE_CHECKING:
    from maxbrod.config import StorageConfig
    from maxbrod.storage.interface import Storage

_PROBES: Final = "probes/"
_LOG: Final = "catalog/segments/_delta_log/"


def open_writable(url: str, options: StorageConfig, *, single_writer: bool = False) -> tuple[Storage, Catalog]:
    """RefusedError: the store ignores conditional puts and `single_writer` does not vouch that nobody else writes, or
    there are objects but no catalog.
    """
    storage = open_storage(url, options)
    catalog = _existing(url, options)
    if catalog is None:
        _refuse_foreign_objects(storage)
    if not probe_conditional_puts(storage) and not single_writer:
        raise RefusedError(
            "the store ignores conditional puts: two writers would overwrite each other's commits",
            operation="open for writing",
            object_name=storage.url,
            hint="use another store, or make sure that nobody else ever writes to this archive and say --single-writer",
        )
    return storage, catalog or _created(url, options)


def _existing(url: str, options: StorageConfig) -> Catalog | None:
    settings = delta_options(url, options)
    try:
        return Catalog.open(delta_url(url), settings)
    except UsageError:
        return None


def _created(url: str, options: StorageConfig) -> Catalog:
    place, settings = delta_url(url), delta_options(url, options)
    make_table_folder(url, options, TABLE_FOLDER)
    try:
        return Catalog.create(place, settings)
    except RefusedError:
        # Somebody else was faster; from here on it is like any other archive.
        return Catalog.open(place, settings)


def _refuse_foreign_objects(storage: Storage) -> None:
    """A catalog beside objects that it does not name would make garbage of them, and `gc` would delete them."""
    for found in storage.list():
        if not _is_leftover(found.path):
            raise RefusedError(
                "there are objects here, but no catalog of an archive",
                operation="open for writing",
                object_name=storage.name_of(found.path),
                hint="name an empty place; if this is an archive that lost its catalog, bring back its folder "
                "'catalog' from a copy or from older object versions",
            )


def _is_leftover(path: str) -> bool:
    """Of a first opening that was killed: a probe, or an entry of Delta's log that never got its name."""
    return path.startswith(_PROBES) or (path.startswith(_LOG) and not path.endswith((".json", ".parquet")))

"""Guards commits that come late: `gc` may have deleted the objects that they name.

`gc` deletes objects that no row names, after a grace time of an hour at least. A run that was suspended, or took longer
than that time, names objects that are gone, and `gc` commits nothing by which the run would notice. So a commit that
comes late asks for its objects first.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from maxbrod.errors import CorruptDataError, ObjectNotFoundError, RefusedError

if TYPE_CHECKING:
    import pyarrow as pa

    from maxbrod.storage.interface import Storage

LATE_MS: Final = 30 * 60 * 1000
"""Objects younger than this are there: half of the shortest grace time, since clocks differ."""
_REQUESTS: Final = 16


def demand_objects(storage: Storage, added: pa.Table, gone: pa.Table) -> None:
    """RefusedError: an object that a new row names does not exist. Objects of replaced rows were named all along."""
    missing = _missing(storage, added, gone)
    if missing is not None:
        raise RefusedError(
            "an object of this run was deleted before the run could commit it: 'maxbrod gc' took it for garbage",
            operation="commit to the catalog",
            object_name=storage.name_of(missing),
            hint="nothing of this commit is visible; run the command again, and give gc a --grace longer than a run",
        )


def demand_committed(storage: Storage, added: pa.Table, gone: pa.Table) -> None:
    """CorruptDataError: an object is missing that the commit has just named."""
    missing = _missing(storage, added, gone)
    if missing is not None:
        raise CorruptDataError(
            "an object of this run was deleted while the run committed it: 'maxbrod gc' took it for garbage",
            operation="commit to the catalog",
            object_name=storage.name_of(missing),
            hint="'maxbrod repair' makes gaps of such objects and reads them again from the source",
        )


def _missing(storage: Storage, added: pa.Table, gone: pa.Table) -> str | None:
    named = pc.unique(added["path"]).to_pylist()
    known = set(pc.unique(gone["path"]).to_pylist())
    paths = [path for path in named if path is not None and path not in known]
    with ThreadPoolExecutor(_REQUESTS) as pool:
        there = pool.map(lambda path: _is_there(storage, path), paths)
        return next((path for path, found in zip(paths, there, strict=True) if not found), None)


def _is_there(storage: Storage, path: str) -> bool:
    try:
        storage.head(path)
    except ObjectNotFoundError:
        return False
    return True

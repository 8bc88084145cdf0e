"""Creates and loads the Delta table, and turns what delta-rs raises into our errors."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from maxbrod.catalog.durable import refuse_linked, sync_new_table
from maxbrod.catalog.schema import SCHEMA, TABLE_PROPERTIES, check_format
from maxbrod.errors import CorruptDataError, MaxbrodError, RefusedError, UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TABLE_FOLDER: Final = "catalog/segments"
_DAMAGE: Final = re.compile(r"CRC checksum|[Cc]orrupt|[Tt]hrift|Parquet magic|Parquet file|decompress")
"""Arrow has no class of its own for a file that is not what it should be, only these words."""
_NO_ROWS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)
"""What a file has cannot be made into rows: a store that fails raises something else."""


def table_url(archive_url: str) -> str:
    return f"{archive_url.rstrip('/')}/{TABLE_FOLDER}"


def create_table(archive_url: str, options: Mapping[str, str]) -> DeltaTable:
    """A new catalog without rows; refused where there is one."""
    url = table_url(archive_url)
    with store_errors("create the catalog", archive_url):
        refuse_linked(archive_url)
        if DeltaTable.is_deltatable(url, dict(options)):
            raise _exists(archive_url)
        try:
            DeltaTable.create(
                url,
                SCHEMA,
                mode="error",
                configuration=dict(TABLE_PROPERTIES),
                storage_options=dict(options),
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            # Someone was faster, or the store failed: what is there now tells which.
            if DeltaTable.is_deltatable(url, dict(options)):
                raise _exists(archive_url) from None
            raise
        sync_new_table(url)
    return load_table(archive_url, options)


def load_table(archive_url: str, options: Mapping[str, str], *, version: int | None = None) -> DeltaTable:
    """The newest version, or a given one; refused if its format is not ours."""
    with store_errors("open the catalog", archive_url):
        refuse_linked(archive_url)
        try:
            table = DeltaTable(table_url(archive_url), version=version, storage_options=dict(options))
        except TableNotFoundError:
            raise UsageError(
                "there is no archive",
                operation="open the catalog",
                object_name=archive_url,
                hint="check the URL; a first backup creates the archive",
            ) from None
        check_format(table.metadata().configuration, pa.schema(table.schema().to_arrow()), name=archive_url)
    return table


@contextmanager
def store_errors(operation: str, archive_url: str) -> Iterator[None]:
    """Whatever fails inside failed in the store, or on the way to it."""
    try:
        yield
    except MaxbrodError:
        raise
    except (DeltaError, OSError, pa.ArrowException) as error:
        if _DAMAGE.search(str(error)) or isinstance(error, _NO_ROWS):
            raise CorruptDataError(
                f"a file of the catalog is damaged: {_first_line(error)}",
                operation=operation,
                object_name=archive_url,
                hint="read it again; if it stays, bring back the catalog folder from a copy or an older object version",
            ) from error
        raise UnavailableError(
            f"cannot {operation}: {_first_line(error)}",
            operation=operation,
            object_name=archive_url,
            hint="see that the store can be reached and that its keys are right, then try again",
        ) from error


def _exists(archive_url: str) -> RefusedError:
    return RefusedError(
        "there is an archive already", operation="create the catalog", object_name=archive_url, hint="open it instead"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

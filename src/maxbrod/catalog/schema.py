"""The catalog's columns as data, and the version of the format.

A release reads every archive of its own major version. A minor version may add columns, which older releases carry
along and do not interpret; whatever changes the meaning of a row needs a new major version.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from maxbrod.errors import CorruptDataError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT_PROPERTY: Final = "maxbrod.format"
FORMAT_MAJOR: Final = 1
FORMAT_VERSION: Final = f"{FORMAT_MAJOR}.1"


class Kind(StrEnum):
    """What a row says about its offsets. A run has none."""

    DATA = "data"
    GAP = "gap"
    RUN = "run"
    REPLACED = "replaced"
    """Data or a gap that is so no more: only `as of` an older run asks for it. See `replaced`."""


ABORTED_TYPE: Final = pa.list_(
    pa.struct([("producer_id", pa.int64()), ("first_offset", pa.int64()), ("last_offset", pa.int64())])
)

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("kind", pa.string()),
        ("reason", pa.string()),
        ("path", pa.string()),
        ("position", pa.int64()),
        ("bytes", pa.int64()),
        ("raw_bytes", pa.int64()),
        ("codec", pa.string()),
        ("records", pa.int64()),
        ("min_timestamp", pa.int64()),
        ("max_timestamp", pa.int64()),
        ("first_leader_epoch", pa.int32()),
        ("last_leader_epoch", pa.int32()),
        ("aborted", ABORTED_TYPE),
        ("digest", pa.string()),
        ("level", pa.int32()),
        ("run_id", pa.string()),
        ("written_at", pa.int64()),
        ("details", pa.string()),
        ("min_timestamp_exact", pa.bool_()),
        ("control_records", pa.int64()),
    ]
)

ADDED_COLUMNS: Final = frozenset({"min_timestamp_exact", "control_records"})
"""By minor versions after 1.0: null in every row of an archive that was created before."""

SORT_ORDER: Final = [("topic_id", "ascending"), ("partition", "ascending"), ("base_offset", "ascending")]
"""Of the rows in each data file, so that the rows of one partition stand together. Runs, without a topic, are last."""

TABLE_PROPERTIES: Final = {
    FORMAT_PROPERTY: FORMAT_VERSION,
    "delta.checkpointInterval": "10",
    # As of a run is answered from its snapshot, never by Delta's time travel: the log is kept for readers under way.
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
}


def check_format(properties: Mapping[str, str | None], schema: pa.Schema, *, name: str) -> None:
    """Refuse a table that this release cannot be sure to understand."""
    version = properties.get(FORMAT_PROPERTY)
    parts = re.fullmatch(r"(\d+)\.(\d+)", version or "")
    if parts is None:
        raise UnsupportedFormatError(
            "the table is no catalog of maxbrod" if version is None else f"its format version is {version!r}",
            operation="open the catalog",
            object_name=name,
            hint=f"every catalog has the table property {FORMAT_PROPERTY}, such as {FORMAT_VERSION}",
        )
    if int(parts[1]) != FORMAT_MAJOR:
        raise UnsupportedFormatError(
            f"the archive has format {version}, this release knows {FORMAT_MAJOR}.x",
            operation="open the catalog",
            object_name=name,
            hint="use the release of maxbrod that wrote it, or a newer one",
        )
    missing = [column for column in SCHEMA.names if column not in schema.names and column not in ADDED_COLUMNS]
    if missing:
        raise UnsupportedFormatError(
            f"the catalog has no column {', '.join(missing)}", operation="open the catalog", object_name=name
        )
    for field in SCHEMA:
        if field.name in schema.names and not _alike(schema.field(field.name).type, field.type):
            raise CorruptDataError(
                f"the catalog's column {field.name} is of type {schema.field(field.name).type}, not {field.type}",
                operation="open the catalog",
                object_name=name,
                hint="another program wrote it; bring back the folder 'catalog' from a copy or older object versions",
            )


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """The names inside of lists differ between those who write Delta tables."""
    if pa.types.is_list(wanted):
        return pa.types.is_list(found) and _alike(found.value_type, wanted.value_type)
    if pa.types.is_struct(wanted):
        same = pa.types.is_struct(found) and [each.name for each in found] == [each.name for each in wanted]
        return same and all(_alike(one.type, other.type) for one, other in zip(found, wanted, strict=True))
    return bool(found == wanted)

"""The rows of the catalog as frozen values, and as Arrow: both ways, without loss. No I/O.

A field has the name of its column (see `schema.COLUMNS`). Offsets are 64 bits, ends are exclusive, times are
milliseconds since 1970.

The highest timestamp of a row comes from headers of batches. Some clients sent batches whose header has a highest
timestamp below that of the first record. Then the row does not say how new its records are, and nobody may leave it out
or delete it by its time.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from maxbrod import strict_json
from maxbrod.catalog.schema import SCHEMA, Kind, fields_of
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.kafka.format import Slice, StoredSlice
from maxbrod.model import AbortedTransaction, GapReason, InPartition

if TYPE_CHECKING:
    import pyarrow.dataset as ds


_RUN_ID_FORMAT: Final = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(StoredSlice, InPartition):
    """Offsets that are archived: a slice of an object that holds their batches, and whose it is."""

    topic: str
    topic_id: str
    partition: int
    level: int = 0
    reason: GapReason | None = None
    """The reason why there are fewer records than offsets; None if there are not."""
    run_id: str
    written_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(InPartition):
    """Offsets that are not archived, and why."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    end_offset: int
    reason: GapReason
    run_id: str
    written_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a command that changed the archive. `statistics` is any JSON that the command wants to keep."""

    run_id: str
    started_at: int
    finished_at: int
    snapshot: str | None
    statistics: Mapping[str, Any] = field(default_factory=dict)
    snapshot_changes: Sequence[Any] = ()
    """The differences from `snapshot`, which is an earlier run's; empty if it is this run's own."""
    written_at: int
    commit: int | None = field(default=None, compare=False)
    """The version of the catalog that added the row. It orders runs regardless of clocks. The catalog sets it; None in
    rows of older releases and in rows that are not committed."""


Row: TypeAlias = Segment | Gap | Run
_DEPTH_MAX: Final = 32
"""The nesting of a run's details: deeper than any command nests, and less than any JSON parser supports."""
COMMIT: Final = "commit"
"""A key in `details` of a run. It sorts first, so that `RUN_COMMIT` finds it without parsing the JSON."""
RUN_COMMIT: Final = r'^\{"commit": (?P<commit>[0-9]{1,18}),'
SLICE_FIELDS: Final = tuple(column.name for column in fields(StoredSlice))
"""The fields of a row that describe a slice."""
_SEGMENT, _GAP = fields_of(Kind.DATA), fields_of(Kind.GAP)


class _RunDetails(BaseModel):
    """The fields of a run besides columns. Keys that this release does not know are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    started_at: int
    finished_at: int
    statistics: dict[str, Any]
    snapshot_changes: Annotated[tuple[list[Any], ...], Field(strict=False)] = ()
    commit: int | None = None


def shared_fields(place: InPartition, *, run_id: str, written_at: int) -> dict[str, Any]:
    """The fields that all rows share which a run writes of one partition."""
    names = ("topic", "topic_id", "partition")
    return {**{name: getattr(place, name) for name in names}, "run_id": run_id, "written_at": written_at}


def slice_of(row: Segment) -> Slice:
    """The slice by which the layout reads the segment, without what only the catalog needs."""
    return Slice(**{name: getattr(row, name) for name in SLICE_FIELDS})


def encode_rows(rows: Iterable[Row]) -> pa.Table:
    """A table of `SCHEMA`; columns that a kind of row does not have are null."""
    return pa.Table.from_pylist([_encode(row) for row in rows], schema=SCHEMA)


def decode_rows(table: pa.Table) -> list[Row]:
    """The inverse; columns that this release does not know are ignored."""
    return [_decode(values) for values in table.select(SCHEMA.names).to_pylist()]


def _encode(row: Row) -> dict[str, Any]:
    match row:
        case Segment():
            values = {name: getattr(row, name) for name in _SEGMENT}
            return {**values, "kind": Kind.DATA, "aborted": [asdict(transaction) for transaction in row.aborted]}
        case Gap():
            return {"kind": Kind.GAP, **{name: getattr(row, name) for name in _GAP}}
        case Run():
            details: dict[str, Any] = {
                "started_at": row.started_at,
                "finished_at": row.finished_at,
                "statistics": dict(row.statistics),
            }
            if row.snapshot_changes:
                details["snapshot_changes"] = list(row.snapshot_changes)
            if row.commit is not None:
                details[COMMIT] = row.commit
            text = json.dumps(details, sort_keys=True, allow_nan=False)
            shared = {"run_id": row.run_id, "written_at": row.written_at}
            return {"kind": Kind.RUN, **shared, "path": row.snapshot, "details": text}


def _decode(values: dict[str, Any]) -> Row:
    match values["kind"]:
        case Kind.DATA:
            known = {name: values[name] for name in _SEGMENT}
            known["aborted"] = tuple(AbortedTransaction(**transaction) for transaction in values["aborted"] or ())
            known["reason"] = None if values["reason"] is None else _reason(values)
            # Null in rows of older releases, which did not look.
            known["min_timestamp_exact"] = bool(values["min_timestamp_exact"])
            return Segment(**known)
        case Kind.GAP:
            return Gap(**{**{name: values[name] for name in _GAP}, "reason": _reason(values)})
        case Kind.RUN:
            return Run(
                run_id=values["run_id"],
                written_at=values["written_at"],
                snapshot=values["path"],
                **_run_details(values),
            )
        case unknown:
            raise _unknown("kind", unknown, values)


def _run_details(values: dict[str, Any]) -> dict[str, Any]:
    try:
        found = strict_json.parse(values["details"], depth_max=_DEPTH_MAX)
        return _RunDetails.model_validate(found).model_dump()
    except (ValueError, TypeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        why = str(error) if first is None else f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise CorruptDataError(
            f"a row of the catalog is invalid: its details are not those of a run: {why}",
            operation="read the catalog",
            object_name=f"run {values['run_id']!a}",
            hint="the catalog is damaged: 'maxbrod repair' rebuilds it from the objects",
        ) from error


def _reason(values: dict[str, Any]) -> GapReason:
    try:
        return GapReason(values["reason"])
    except ValueError:
        raise _unknown("reason", values["reason"], values) from None


def _unknown(column: str, value: object, values: dict[str, Any]) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"a row of the catalog has the unknown {column} {value!r}",
        operation="read the catalog",
        object_name=f"{values['topic']}-{values['partition']}",
        offset=values["base_offset"],
        hint="the catalog was written by a newer release of maxbrod, or by another program",
    )


def new_run_id() -> str:
    """A unique id of a run. Ids sort by time."""
    return f"{time.strftime(_RUN_ID_FORMAT, time.gmtime())}-{secrets.token_hex(3)}"


def time_of(run_id: str) -> int | None:
    """The time when a run began, for runs that were thinned out since; None if the id is not one of ours."""
    try:
        return int(datetime.strptime(run_id[:16], _RUN_ID_FORMAT).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None


def newest_times(rows: pa.Table) -> pa.ChunkedArray:
    """The highest timestamp of each row; null if the row has none, or one below its lowest."""
    contradicts = pc.fill_null(pc.greater(rows["min_timestamp"], rows["max_timestamp"]), False)
    return pc.if_else(contradicts, None, rows["max_timestamp"])


def newest_time(lowest: int | None, highest: int | None) -> int | None:
    """The same of one row."""
    return None if lowest is not None and highest is not None and lowest > highest else highest


def may_have_since(first_ms: int) -> ds.Expression:
    """The condition that a row may have a record of this time or later."""
    highest = pc.field("max_timestamp")
    return highest.is_null() | (highest >= first_ms) | _contradicts()


def may_have_until(last_ms: int) -> ds.Expression:
    """The condition that a row may have a record of this time or earlier: unless its lowest timestamp is exact."""
    later = pc.field("min_timestamp_exact") & (pc.field("min_timestamp") > last_ms)
    return ~pc.coalesce(later, pc.scalar(False)) | _contradicts()


def _contradicts() -> ds.Expression:
    return pc.coalesce(pc.field("min_timestamp") > pc.field("max_timestamp"), pc.scalar(False))

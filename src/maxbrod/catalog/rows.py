"""The rows of the catalog as frozen values, and as Arrow: both ways, nothing lost.

Fields are named after columns. Offsets are 64 bits, ends are exclusive, times are milliseconds since 1970. No I/O.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from maxbrod import strict_json
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.kafka.slices import Slice
from maxbrod.model import AbortedTransaction, GapReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Offsets that are archived: a slice of an object that holds their batches."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    end_offset: int
    path: str
    position: int
    bytes: int
    raw_bytes: int
    codec: str
    records: int
    min_timestamp: int | None
    max_timestamp: int | None
    first_leader_epoch: int
    last_leader_epoch: int
    aborted: tuple[AbortedTransaction, ...] = ()
    digest: str
    level: int = 0
    reason: GapReason | None = None
    """Why there are fewer records than offsets; None where there are not."""
    details: str | None = None
    """Of a segment in an archive of another layout; never in our own catalogs."""
    min_timestamp_exact: bool = False
    """Whether no record is older than `min_timestamp`; else a batch's first record may stand for the others."""
    control_records: int | None = None
    """How many of `records` are markers of transactions; None where nobody has counted them."""
    run_id: str
    written_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
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
    """One run of a command that changed the archive. `statistics` is whatever JSON the command wants remembered."""

    run_id: str
    started_at: int
    finished_at: int
    snapshot: str | None
    statistics: Mapping[str, Any] = field(default_factory=dict)
    written_at: int
    commit: int | None = field(default=None, compare=False)
    """The version of the catalog that the row came with, which orders runs whatever their clocks said. The catalog sets
    it; None in rows of before, and in those that are not committed."""


Row: TypeAlias = Segment | Gap | Run
_DEPTH_MAX: Final = 32
"""Of what a run remembers: deeper than any command nests, and less than any reader of it can bear."""
COMMIT: Final = "commit"
"""In `details` of a run. Of its keys the first in order, so that `RUN_COMMIT` finds it without reading the JSON."""
RUN_COMMIT: Final = r'^\{"commit": (?P<commit>[0-9]{1,18}),'
SLICE_FIELDS: Final = tuple(
    each.name for each in fields(Slice) if each.name in {known.name for known in fields(Segment)}
)
"""What a row remembers of a slice."""


def slice_of(row: Segment) -> Slice:
    """What the layout needs to read it."""
    return Slice(**{name: getattr(row, name) for name in SLICE_FIELDS})


_SHARED: Final = ("run_id", "written_at")
_RANGE: Final = ("topic", "topic_id", "partition", "base_offset", "end_offset", *_SHARED)
_SLICE: Final = (
    *("path", "position", "bytes", "raw_bytes", "codec", "records", "min_timestamp", "max_timestamp"),
    *("first_leader_epoch", "last_leader_epoch", "digest", "level", "reason", "details"),
    *("min_timestamp_exact", "control_records"),
)


def encode_rows(rows: Iterable[Row]) -> pa.Table:
    """A table of `SCHEMA`; what a kind of row does not have is null."""
    return pa.Table.from_pylist([_encode(row) for row in rows], schema=SCHEMA)


def decode_rows(table: pa.Table) -> list[Row]:
    """The inverse; columns that this release does not know are ignored."""
    return [_decode(values) for values in table.select(SCHEMA.names).to_pylist()]


def _encode(row: Row) -> dict[str, Any]:
    match row:
        case Segment():
            aborted = [
                {
                    "producer_id": each.producer_id,
                    "first_offset": each.first_offset,
                    "last_offset": each.last_offset,
                }
                for each in row.aborted
            ]
            return {"kind": Kind.DATA, **_values(row, _RANGE), **_values(row, _SLICE), "aborted": aborted}
        case Gap():
            return {"kind": Kind.GAP, **_values(row, _RANGE), "reason": row.reason}
        case Run():
            details = {
                "started_at": row.started_at,
                "finished_at": row.finished_at,
                "statistics": dict(row.statistics),
            }
            if row.commit is not None:
                details[COMMIT] = row.commit
            text = json.dumps(details, sort_keys=True, allow_nan=False)
            return {"kind": Kind.RUN, **_values(row, _SHARED), "path": row.snapshot, "details": text}


def _values(row: Row, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _decode(values: dict[str, Any]) -> Row:
    def take(names: tuple[str, ...]) -> dict[str, Any]:
        return {name: values[name] for name in names}

    match values["kind"]:
        case Kind.DATA:
            aborted = tuple(AbortedTransaction(**each) for each in values["aborted"] or ())
            reason = None if values["reason"] is None else _reason(values)
            # Null where nobody has looked.
            known = {"reason": reason, "min_timestamp_exact": bool(values["min_timestamp_exact"])}
            return Segment(**take(_RANGE), **{**take(_SLICE), **known}, aborted=aborted)
        case Kind.GAP:
            return Gap(**take(_RANGE), reason=_reason(values))
        case Kind.RUN:
            return Run(**take(_SHARED), snapshot=values["path"], **_details(values))
        case unknown:
            raise _unknown("kind", unknown, values)


def _details(values: dict[str, Any]) -> dict[str, Any]:
    """What a run has besides columns. Fields that are not known are passed over."""
    try:
        found = strict_json.parse(values["details"], depth_max=_DEPTH_MAX)
        known = {name: found[name] for name in ("started_at", "finished_at", "statistics")}
        known[COMMIT] = found.get(COMMIT)
        if not isinstance(known["statistics"], dict):
            raise TypeError("statistics is no object")
        for name in ("started_at", "finished_at"):
            if type(known[name]) is not int:
                raise TypeError(f"{name} is no time")
        if known[COMMIT] is not None and type(known[COMMIT]) is not int:
            raise TypeError(f"{COMMIT} is no version")
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptDataError(
            f"a row of the catalog makes no sense: its details are not those of a run: {error}",
            operation="read the catalog",
            object_name=f"run {values['run_id']!a}",
            hint="the catalog is damaged; bring back its folder 'catalog' from a copy or from older object versions",
        ) from error
    return known


def _reason(values: dict[str, Any]) -> GapReason:
    try:
        return GapReason(values["reason"])
    except ValueError:
        raise _unknown("reason", values["reason"], values) from None


def _unknown(column: str, value: object, values: dict[str, Any]) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"a row of the catalog has {column} {value!r}",
        operation="read the catalog",
        object_name=f"{values['topic']}-{values['partition']}",
        offset=values["base_offset"],
        hint="the catalog was written by a newer release of maxbrod, or by another program",
    )

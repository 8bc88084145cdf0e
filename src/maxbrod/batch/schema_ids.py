"""Schema ids in records: Confluent's frames in keys and values, and ids in headers. Columns in, columns out.

    prefix   byte 0: 0; bytes 1 to 4: the id, big endian; then the data (Protobuf's message indexes come first there)
    header   __key_schema_id or __value_schema_id; byte 0: 0 and an id as above, or 1 and the 16 bytes of a GUID

Ids are exchanged in place: no record becomes longer or shorter. Bytes behind the id are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.columns import (
    BinaryColumn,
    binary_array,
    binary_column,
    headers_array,
    headers_columns,
    number_column,
)
from maxbrod.errors import RefusedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC_ID: Final = 0
MAGIC_GUID: Final = 1
FRAME_BYTES: Final = 5
GUID_BYTES: Final = 16
HEADER_NAMES: Final = {"key": b"__key_schema_id", "value": b"__value_schema_id"}
_OPERATION: Final = "map schema ids"
_ID_BYTES: Final = np.arange(1, FRAME_BYTES)


class Framing(StrEnum):
    """What is known about the keys, or the values, of a topic."""

    FRAMED = "framed"
    """They begin with a schema id. Those that do not begin with a zero byte were written without one, and stay."""
    UNFRAMED = "unframed"
    """They have no schema id, whatever they begin with."""
    UNKNOWN = "unknown"
    """Nothing says it: whatever could be a frame is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaIdMap:
    """The ids of a registry in another one, and where a topic has them."""

    ids: Mapping[int, int]
    guids: Mapping[bytes, bytes] = field(default_factory=dict)
    key: Framing = Framing.UNKNOWN
    value: Framing = Framing.UNKNOWN

    def framing(self, part: str) -> Framing:
        return self.key if part == "key" else self.value


def with_mapped_ids(records: pa.RecordBatch, ids: SchemaIdMap, *, where: str) -> pa.RecordBatch:
    """Exchange the ids in `records`, which need the columns `offset`, `key`, `value` and `headers`.

    RefusedError: a record has an id that the map lacks, or may have one. `where` is its partition.
    """
    offsets = number_column(records.column("offset"))
    named = {part: _headers_of(records, name) for part, name in HEADER_NAMES.items()}
    for part in HEADER_NAMES:
        if ids.framing(part) is not Framing.UNFRAMED:
            column = binary_column(records.column(part))
            # Where a header has the id, there is no prefix, and the data may begin with a zero byte.
            plain = np.ones(len(offsets), np.bool_)
            plain[named[part][1]] = False
            changed = _with_prefixes(column, plain, ids, part, offsets, where)
            if changed is not None:
                records = _set(records, part, binary_array(column.ends, changed, column.valid))
    return _with_headers(records, named, ids, offsets, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundIds:
    """The schema ids in the keys, or the values, of some records; each with the offset of its record."""

    ids: NDArray[np.int64]
    """In prefixes: whatever begins with a zero byte and a positive number."""
    offsets: NDArray[np.int64]
    header_ids: NDArray[np.int64]
    header_offsets: NDArray[np.int64]
    guids: tuple[tuple[bytes, int], ...]
    """In headers, each with its offset."""


def find_ids(records: pa.RecordBatch, part: str) -> FoundIds:
    """The ids in `records`, which need the columns `offset`, `key`, `value` and `headers`."""
    offsets = number_column(records.column("offset"))
    places, named = _headers_of(records, HEADER_NAMES[part])
    column = binary_column(records.column(part))
    starts, sizes = _extents(column)
    rows = column.valid & (sizes >= FRAME_BYTES)
    # Where a header has the id, there is no prefix, and the data may begin with a zero byte.
    rows[named] = False
    marked = np.flatnonzero(rows)
    marked = marked[column.data[starts[marked]] == MAGIC_ID]
    ids = _ids_at(column.data, starts[marked])
    likely = ids > 0
    values = headers_columns(records.column("headers"))[2]
    starts, sizes = (extents[places] for extents in _extents(values))
    whole = np.flatnonzero(values.valid[places] & (sizes >= FRAME_BYTES))
    magic = values.data[starts[whole]]
    by_id = whole[magic == MAGIC_ID]
    by_guid = whole[(magic == MAGIC_GUID) & (sizes[whole] > GUID_BYTES)]
    guids = values.data[starts[by_guid][:, None] + 1 + np.arange(GUID_BYTES)]
    return FoundIds(
        ids=ids[likely],
        offsets=offsets[marked[likely]],
        header_ids=_ids_at(values.data, starts[by_id]),
        header_offsets=offsets[named[by_id]],
        guids=tuple(zip(map(bytes, guids), offsets[named[by_guid]].tolist(), strict=True)),
    )


def _headers_of(records: pa.RecordBatch, name: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The headers of this name, by their place among all headers, and the row of each."""
    headers = records.column("headers")
    nothing = np.zeros(0, np.int64)
    if not len(headers) or not len(headers.values):
        return nothing, nothing
    ends = headers_columns(headers)[0]
    same = number_column(pc.equal(headers.values.field(0), pa.scalar(name, pa.binary())))
    places = np.flatnonzero(same)
    # A sliced column has the headers of its parent, too.
    places = places[(places >= ends[0]) & (places < ends[-1])]
    return places, np.searchsorted(ends, places, side="right") - 1


def _set(records: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    place = records.schema.get_field_index(name)
    return records.set_column(place, records.schema.field(place), column)


def _with_prefixes(
    column: BinaryColumn,
    plain: NDArray[np.bool_],
    ids: SchemaIdMap,
    part: str,
    offsets: NDArray[np.int64],
    where: str,
) -> NDArray[np.uint8] | None:
    """The bytes of the column with the new ids; None: it has no frame. Only `plain` rows may have one."""
    starts, sizes = _extents(column)
    framed = ids.framing(part) is Framing.FRAMED
    marked = np.flatnonzero(plain & column.valid & (sizes > 0))
    marked = marked[column.data[starts[marked]] == MAGIC_ID]
    short = marked[sizes[marked] < FRAME_BYTES]
    if framed and len(short):
        raise _refused(
            f"a {part} begins with a zero byte and is too short for a schema id", int(offsets[short[0]]), where, part
        )
    rows = marked[sizes[marked] >= FRAME_BYTES]
    found = _ids_at(column.data, starts[rows])
    if not framed:
        # No registry gives the id 0, or a negative one: these are numbers, such as the keys of many topics.
        likely = np.flatnonzero(found > 0)
        if len(likely):
            row = int(rows[likely[0]])
            raise _refused(
                f"a {part} may begin with schema id {int(found[likely[0]])}, or with a zero byte of its own",
                int(offsets[row]),
                where,
                part,
            )
        return None
    if not len(rows):
        return None
    new = _mapped(found, rows, ids, offsets, where, part)
    return _put_ids(column.data, starts[rows], new)


def _extents(column: BinaryColumn) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ends = column.ends.astype(np.int64)
    return ends[:-1], ends[1:] - ends[:-1]


def _ids_at(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids of frames that begin at `starts`, signed as Java has them."""
    taken = np.ascontiguousarray(data[starts[:, None] + _ID_BYTES])
    return taken.view(">i4").ravel().astype(np.int64)


def _put_ids(data: NDArray[np.uint8], starts: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    made = data.copy()
    made[starts[:, None] + _ID_BYTES] = ids.astype(">i4").view(np.uint8).reshape(-1, 4)
    return made


def _mapped(
    found: NDArray[np.int64],
    rows: NDArray[np.int64],
    ids: SchemaIdMap,
    offsets: NDArray[np.int64],
    where: str,
    part: str,
) -> NDArray[np.int64]:
    """The new id of each; a batch has few different ones."""
    different, inverse = np.unique(found, return_inverse=True)
    known = np.array([identity in ids.ids for identity in different.tolist()], np.bool_)
    unknown = np.flatnonzero(~known[inverse])
    if len(unknown):
        row = int(unknown[0])
        raise RefusedError(
            f"a {part} has schema id {int(found[row])}, which was not captured",
            operation=_OPERATION,
            object_name=where,
            offset=int(offsets[rows[row]]),
            hint="back up with --schema-registry while the registry has it; or, if these are no schema ids, say "
            f"--unframed TOPIC:{part}",
        )
    return np.array([ids.ids[identity] for identity in different.tolist()], np.int64)[inverse]


def _with_headers(
    records: pa.RecordBatch,
    named: Mapping[str, tuple[NDArray[np.int64], NDArray[np.int64]]],
    ids: SchemaIdMap,
    offsets: NDArray[np.int64],
    where: str,
) -> pa.RecordBatch:
    headers = records.column("headers")
    ends, _, values = headers_columns(headers)
    changed: NDArray[np.uint8] | None = None
    for part, (places, rows) in named.items():
        if len(places):
            data = values.data if changed is None else changed
            changed = _exchanged(data, values, places, ids, offsets[rows], where, part)
    if changed is None:
        return records
    names = headers.values.field(0)
    return _set(records, "headers", headers_array(ends, names, binary_array(values.ends, changed, values.valid)))


def _exchanged(
    data: NDArray[np.uint8],
    values: BinaryColumn,
    mine: NDArray[np.int64],
    ids: SchemaIdMap,
    offsets: NDArray[np.int64],
    where: str,
    part: str,
) -> NDArray[np.uint8]:
    starts, sizes = (extents[mine] for extents in _extents(values))
    magic = np.where(sizes > 0, data[np.minimum(starts, len(data) - 1)], 255) if len(data) else np.full(len(mine), 255)
    by_id = values.valid[mine] & (magic == MAGIC_ID) & (sizes >= FRAME_BYTES)
    by_guid = values.valid[mine] & (magic == MAGIC_GUID) & (sizes > GUID_BYTES)
    odd = np.flatnonzero(~by_id & ~by_guid)
    if len(odd):
        raise RefusedError(
            f"the header {HEADER_NAMES[part].decode()} has neither an id nor a GUID",
            operation=_OPERATION,
            object_name=where,
            offset=int(offsets[odd[0]]),
            hint="restore these records without --remap-schemas, or leave them out with --range",
        )
    made = data.copy()
    rows = np.flatnonzero(by_id)
    if len(rows):
        new = _mapped(_ids_at(made, starts[rows]), rows, ids, offsets, where, part)
        made = _put_ids(made, starts[rows], new)
    rows = np.flatnonzero(by_guid)
    if len(rows):
        places = starts[rows][:, None] + 1 + np.arange(GUID_BYTES)
        made[places] = _mapped_guids(made[places], ids, offsets[rows], where, part)
    return made


def _mapped_guids(
    found: NDArray[np.uint8], ids: SchemaIdMap, offsets: NDArray[np.int64], where: str, part: str
) -> NDArray[np.uint8]:
    different, inverse = np.unique(found, axis=0, return_inverse=True)
    new = []
    for number, guid in enumerate(different):
        known = ids.guids.get(guid.tobytes())
        if known is None:
            row = int(np.flatnonzero(inverse.ravel() == number)[0])
            raise RefusedError(
                f"the header {HEADER_NAMES[part].decode()} has the GUID {guid.tobytes().hex()}, which was not captured",
                operation=_OPERATION,
                object_name=where,
                offset=int(offsets[row]),
                hint="back up with --schema-registry while the registry has it",
            )
        new.append(np.frombuffer(known, np.uint8))
    return np.stack(new)[inverse.ravel()]


def _refused(message: str, offset: int, where: str, part: str) -> RefusedError:
    return RefusedError(
        message,
        operation=_OPERATION,
        object_name=where,
        offset=offset,
        hint=f"say which: --framed TOPIC:{part} if they begin with schema ids, --unframed TOPIC:{part} if not",
    )

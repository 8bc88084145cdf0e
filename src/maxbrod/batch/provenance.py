"""Headers of restored and replicated records that name their source. Columns in, columns out: no Python per record.

A record that is restored twice has them twice. The last ones are of the last restore, and Kafka's clients return the
last header of a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.columns import headers_array, headers_columns, number_array, number_column, text_array
from maxbrod.model import TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOPIC: Final = "maxbrod.source.topic"
PARTITION: Final = "maxbrod.source.partition"
CLUSTER_ID: Final = "maxbrod.source.cluster_id"
ORIGIN: Final = "maxbrod.origin"
RESTORE_ID: Final = "maxbrod.restore_id"
OFFSET: Final = "maxbrod.source.offset"
TIMESTAMP: Final = "maxbrod.source.timestamp_ms"
PROVENANCE_BYTES_MAX: Final = 1024
"""The most that the headers add to one record: a topic name has up to 249 letters, the ids and numbers far fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The source of all records of one partition. Old snapshots have no cluster id; then there is no header for it."""

    topic: str
    partition: int
    cluster_id: str | None
    restore_id: str
    origins: tuple[str, ...] = ()
    """The places that the records have passed, in headers of their own: replication must not send them back."""
    left_out: tuple[str, ...] = ()
    """Records that have been at one of these places are left out."""

    @property
    def constants(self) -> list[tuple[str, str]]:
        """The headers that are the same for all records."""
        found = [(TOPIC, self.topic), (PARTITION, str(self.partition))]
        if self.cluster_id is not None:
            found.append((CLUSTER_ID, self.cluster_id))
        found += [(ORIGIN, origin) for origin in self.origins]
        return [*found, (RESTORE_ID, self.restore_id)]


def with_provenance(records: pa.RecordBatch, provenance: Provenance) -> pa.RecordBatch:
    """Add the headers to `records`, which need the columns `offset`, `timestamp_ms` and `headers`."""
    place = records.schema.get_field_index("headers")
    return records.set_column(place, records.schema.field(place), _stamped(records, provenance))


def without_provenance(records: pa.RecordBatch) -> pa.RecordBatch:
    """The inverse of `with_provenance`, for records that all have its headers: as a restore takes them from the source.

    A topic that gives its own times has changed them; the headers have those of the source.
    """
    headers = records.column("headers")
    rows, entries = _entries(headers)
    ends = headers_columns(headers)[0].astype(np.int64)
    ends -= ends[0]
    first = _last(rows, _equal(entries.field(0), TOPIC), len(headers))
    stop = np.where(first < 0, ends[1:], first)
    kept = number_array(np.flatnonzero(np.arange(len(rows)) < stop[rows]))
    own_ends = np.concatenate([[0], np.cumsum(stop - ends[:-1])]).astype(np.int32)
    own = headers_array(own_ends, entries.field(0).take(kept), entries.field(1).take(kept))
    times, types = (number_column(records.column(name)) for name in ("timestamp_ms", "timestamp_type"))
    changed = types == TimestampType.LOG_APPEND
    if changed.any():
        named = _last(rows, _equal(entries.field(0), TIMESTAMP), len(headers))
        changed &= named >= 0
        texts = entries.field(1).take(number_array(named[changed]))
        times = times.copy()
        times[changed] = number_column(texts.cast(pa.string()).cast(pa.int64()))
    columns = {
        "headers": own,
        "timestamp_ms": number_array(times),
        "timestamp_type": number_array(np.full(len(types), TimestampType.CREATE, types.dtype)),
    }
    for name, column in columns.items():
        place = records.schema.get_field_index(name)
        records = records.set_column(place, records.schema.field(place), column)
    return records


def passed(headers: pa.Array, places: Sequence[str]) -> NDArray[np.bool_]:
    """For each record, whether it has been at one of these places."""
    rows, entries = _entries(headers)
    found = np.zeros(len(headers), np.bool_)
    named = _equal(entries.field(0), ORIGIN)
    for place in places:
        found[rows[named & _equal(entries.field(1), place)]] = True
    return found


def source_offsets(headers: pa.Array, restore_id: str) -> NDArray[np.int64]:
    """For each record, its offset at the source; -1 if this restore, or this link, was not the last to write it."""
    rows, entries = _entries(headers)
    ids, offsets = (_last(rows, _equal(entries.field(0), name), len(headers)) for name in (RESTORE_ID, OFFSET))
    ours = (ids >= 0) & (offsets >= 0)
    ours[ours] = _equal(entries.field(1).take(number_array(ids[ours])), restore_id)
    found = np.full(len(headers), -1, np.int64)
    texts = entries.field(1).take(number_array(offsets[ours]))
    found[ours] = number_column(texts.cast(pa.string()).cast(pa.int64()))
    return found


def _entries(headers: pa.Array) -> tuple[NDArray[np.int64], pa.StructArray]:
    """All headers, and the row of each."""
    ends, _, _ = headers_columns(headers)
    entries = headers.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
    return np.repeat(np.arange(len(headers), dtype=np.int64), np.diff(ends)), entries


def _equal(texts: pa.Array, word: str) -> NDArray[np.bool_]:
    return number_column(pc.fill_null(pc.equal(texts, pa.scalar(word.encode(), texts.type)), fill_value=False))


def _last(rows: NDArray[np.int64], chosen: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """The number of the last chosen header of each row, or -1."""
    found = np.full(count, -1, np.int64)
    numbers = np.flatnonzero(chosen)
    np.maximum.at(found, rows[numbers], numbers)
    return found


def _stamped(records: pa.RecordBatch, provenance: Provenance) -> pa.Array:
    """Gather keys and values by number: the existing ones, then the constants, then offsets and times."""
    headers, rows = records.column("headers"), records.num_rows
    ends, _, _ = headers_columns(headers)
    entries = headers.values
    constants = provenance.constants
    names = [*(key for key, _ in constants), OFFSET, TIMESTAMP]
    keys = pa.concat_arrays([entries.field(0), text_array(names).cast(pa.binary())])
    values = pa.concat_arrays(
        [
            entries.field(1),
            text_array(value for _, value in constants).cast(pa.binary()),
            *(records.column(name).cast(pa.string()).cast(pa.binary()) for name in ("offset", "timestamp_ms")),
        ]
    )
    there, same, added = len(entries), len(constants), len(constants) + 2
    row = np.arange(rows, dtype=np.int64)
    key_number = [np.full(rows, there + number) for number in range(added)]
    value_number = [*key_number[:same], there + same + row, there + same + rows + row]
    return headers_array(
        (ends - ends[0] + added * np.arange(rows + 1)).astype(np.int32),
        keys.take(number_array(_interleaved(ends, key_number))),
        values.take(number_array(_interleaved(ends, value_number))),
    )


def _interleaved(ends: NDArray[np.int32], added: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The numbers from `ends[0]` to `ends[-1]`, and at the end of each row one of each of `added`."""
    rows, width = len(ends) - 1, len(added)
    counts = ends[1:].astype(np.int64) - ends[:-1]
    first, last = int(ends[0]), int(ends[-1])
    found = np.empty(last - first + width * rows, np.int64)
    row = np.arange(rows, dtype=np.int64).repeat(counts)
    found[np.arange(last - first, dtype=np.int64) + width * row] = np.arange(first, last)
    row_end = ends[1:].astype(np.int64) - first + width * np.arange(1, rows + 1)
    for number, values in enumerate(added):
        found[row_end - width + number] = values
    return found

"""Appends headers to restored records that name their source. Columns in, column out: no Python per record.

A record that is restored twice has them twice. The last ones are of the last restore, and Kafka's clients return the
last header of a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import binary_array, headers_array, headers_columns, number_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TOPIC: Final = "maxbrod.source.topic"
PARTITION: Final = "maxbrod.source.partition"
CLUSTER_ID: Final = "maxbrod.source.cluster_id"
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

    @property
    def constants(self) -> dict[str, str]:
        """The headers that are the same for all records."""
        found = {TOPIC: self.topic, PARTITION: str(self.partition)}
        if self.cluster_id is not None:
            found[CLUSTER_ID] = self.cluster_id
        return {**found, RESTORE_ID: self.restore_id}


def with_provenance(records: pa.RecordBatch, provenance: Provenance) -> pa.RecordBatch:
    """Add the headers to `records`, which need the columns `offset`, `timestamp_ms` and `headers`."""
    place = records.schema.get_field_index("headers")
    stamped = _stamped(records, records.column(place), provenance)
    return records.set_column(place, records.schema.field(place), stamped)


def _stamped(records: pa.RecordBatch, headers: pa.Array, provenance: Provenance) -> pa.Array:
    """Gather keys and values by number: the existing ones, then the constants, then offsets and times."""
    rows = records.num_rows
    ends, _, _ = headers_columns(headers)
    entries = headers.values
    constants = provenance.constants
    keys = pa.concat_arrays([entries.field(0), _texts([*constants, OFFSET, TIMESTAMP])])
    values = pa.concat_arrays(
        [
            entries.field(1),
            _texts(list(constants.values())),
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
    for number, each in enumerate(added):
        found[row_end - width + number] = each
    return found


def _texts(words: list[str]) -> pa.Array:
    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    return binary_array(ends, np.frombuffer(b"".join(encoded), np.uint8), None)

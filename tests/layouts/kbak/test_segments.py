"""Records into segments and back: what the layout promises of a single one."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import RefusedError
from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.kbak import reader
from maxbrod.layouts.kbak.survey import LAYOUT
from support import plain_kbak as plain
from support.plain_batches import Record
from support.record_examples import to_arrow, to_records
from support.tool_backups import KBAK, WHERE, some

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

CODECS = ["none", "zstd", "lz4"]


def test_a_segment_ends_with_the_record_that_makes_it_large_enough(storage: Storage) -> None:
    records = some(0, 10)
    size = len(plain.write_record(records[0]))
    two = size + len(plain.write_record(records[1]))
    written = KBAK.write(storage, records, codec="none", segment_bytes_max=size + 1)

    assert written[0].end_offset == 2
    assert written[0].details["uncompressed_size"] == two


def test_records_larger_than_a_piece_are_read_in_bounded_steps(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", 64)
    records = [*some(0, 3), *some(3, 2, size=5000), *some(5, 3)]
    for codec in CODECS:
        [segment] = KBAK.write(storage, records, survey=KBAK.nothing, codec=codec)
        batches = list(LAYOUT.read(storage, segment))
        assert [record for batch in batches for record in to_records(batch)] == records
        assert len(batches) > 2


def test_transaction_markers_never_become_records(storage: Storage) -> None:
    batch = to_arrow(some(0, 4), control=[False, True, False, True])
    [segment] = LAYOUT.write(storage, WHERE, [batch], WriteOptions(), survey=KBAK.nothing)

    assert [record.offset for record in KBAK.read(storage, segment)] == [0, 2]
    assert segment.details["control_records_skipped"] == 2


def test_offset_headers_are_added_as_the_tool_adds_them(storage: Storage) -> None:
    records = some(3, 4)
    [segment] = KBAK.write(storage, records, extra={"offset_headers": "true", "source_cluster": "prod"})

    for before, after in zip(records, KBAK.read(storage, segment), strict=True):
        added = [
            (b"x-original-offset", struct.pack("<q", before.offset)),
            (b"x-original-timestamp", struct.pack("<q", before.timestamp)),
            (b"x-source-cluster", b"prod"),
        ]
        assert after.headers == [*before.headers, *added]


@pytest.mark.parametrize(
    "record",
    [
        Record(offset=0, timestamp=0, key=None, value=None, headers=[(b"k" * 65536, None)]),
        Record(offset=0, timestamp=0, key=None, value=None, headers=[(b"", None)] * 65536),
    ],
)
def test_a_record_that_does_not_fit_is_refused_and_nothing_is_written(storage: Storage, record: Record) -> None:
    with pytest.raises(RefusedError, match="does not fit"):
        KBAK.write(storage, [record])
    assert list(storage.list()) == []

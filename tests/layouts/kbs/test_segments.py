"""Records into segments and back: what the layout promises of a single one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.kbs.survey import LAYOUT
from maxbrod.model import TopicPartition
from support import plain_kbs as plain
from support.record_examples import to_records
from support.tool_backups import KBS, some

if TYPE_CHECKING:
    import pytest

    from maxbrod.storage.interface import Storage

CODECS = ["none", "zstd", "lz4"]


def test_a_segment_ends_with_the_record_that_makes_it_large_enough(storage: Storage) -> None:
    records = some(0, 10)
    size = len(plain.write_block(records[:1]))
    written = KBS.write(storage, records, codec="none", segment_bytes_max=size + 1)

    assert written[0].end_offset == 2
    assert written[0].details["uncompressed_bytes"] == len(plain.write_block(records[:2]))
    assert [segment.path[-12:] for segment in written] == [f"{n:08d}.kbs" for n in range(len(written))]


def test_a_batch_ends_with_the_record_that_makes_it_large_enough(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maxbrod.layouts.kbs.format.BATCH_BYTES_MAX", 50)
    records = [*some(0, 7), *some(7, 2, size=100_000), *some(9, 3)]
    for codec in CODECS:
        [segment] = KBS.write(storage, records, survey=KBS.nothing, codec=codec)
        batches = list(LAYOUT.read(storage, segment))
        assert [record for batch in batches for record in to_records(batch)] == records
        assert len(batches) > 4
        assert plain.read_segment(bytes(storage.get(segment.path))) == records


def test_offset_headers_are_added_as_the_document_has_them(storage: Storage) -> None:
    records = some(3, 4)
    where = TopicPartition(topic="orders", partition=12)
    [segment] = KBS.write(storage, records, where=where, extra={"offset_headers": "true"})

    for before, after in zip(records, KBS.read(storage, segment), strict=True):
        added = [
            (b"x-kafka-backup-offset", str(before.offset).encode()),
            (b"x-kafka-backup-timestamp", str(before.timestamp).encode()),
            (b"x-kafka-backup-partition", b"12"),
        ]
        assert after.headers == [*before.headers, *added]

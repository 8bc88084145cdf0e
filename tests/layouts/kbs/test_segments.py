"""Records into segments and back: what the layout promises of a single one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from examples import record_lists, to_arrow, to_records
from hypothesis import given
from hypothesis import strategies as st
from reference import Record

from kbs import archives, plain
from kbs.archives import NOTHING, WHERE, some
from maxbrod.batch.schema import RECORD_SCHEMA
from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.kbs import writing
from maxbrod.layouts.kbs.layout import LAYOUT
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.storage.interface import Storage

CODECS = ["none", "zstd", "lz4"]

# One batch of two records: offset 5, time 1,700,000,000,123, key k, value v, header h without a value; a tombstone.
GOLDEN = bytes.fromhex(
    "4b42533101000000"              # KBS1, version 1, not compressed
    "00000000000000050000000000000002"    # from offset 5, two records
    "02a1c69cc59f3ed2"                               # CRC-64 of all batches
    "000000000000000500000002"            # batch: from offset 5, two records
    "0000001b0000001b"                    # 27 bytes, and as many unpacked
    "d07fa32a"                                 # CRC-32 of them
    "f6a1abfef962"                           # the first record's time
    "0000026b027602026801" # deltas 0 and 0, k, v, one header: h, null
    "04f7a1abfef962026b0100"     # deltas 2 and -1,700,000,000,124, k, null, no headers
    "0000000000000002e43596ec6c545068"              # two records, CRC-64 of everything before
)  # fmt: skip
GOLDEN_RECORDS = [
    Record(offset=5, timestamp=1_700_000_000_123, key=b"k", value=b"v", headers=[(b"h", None)]),
    Record(offset=7, timestamp=-1, key=b"k", value=None),
]


def test_a_segment_written_by_hand_is_read(storage: Storage) -> None:
    storage.put("s", GOLDEN)

    assert archives.read(storage, archives.segment_of("s", GOLDEN_RECORDS)) == GOLDEN_RECORDS


def test_records_are_written_as_by_hand(storage: Storage) -> None:
    [segment] = archives.write(storage, GOLDEN_RECORDS, codec="none")

    assert bytes(storage.get(segment.path)) == GOLDEN
    assert segment.path == "maxbrod/topics/orders/0/segment-00000000.kbs"


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists(), data=st.data())
def test_any_records_come_back_and_a_plain_reader_finds_the_same(
    shelf: Callable[[], Storage], codec: str, records: list[Record], data: st.DataObject
) -> None:
    storage = shelf()
    limits: dict[str, Any] = {"segment_records_max": data.draw(st.none() | st.integers(1, 5))}
    written = archives.write(storage, records, codec=codec, **limits)

    assert [record for segment in written for record in archives.read(storage, segment)] == records
    stored = [bytes(storage.get(segment.path)) for segment in written]
    assert [record for each in stored for record in plain.read_segment(each)] == records


@pytest.mark.parametrize("codec", range(3))
@given(records=record_lists())
def test_what_another_writer_has_written_is_read(
    shelf: Callable[[], Storage], codec: int, records: list[Record]
) -> None:
    storage = shelf()
    storage.put("s", plain.segment_of(records, codec))

    assert archives.read(storage, archives.segment_of("s", records)) == records


@given(records=record_lists(size_max=20), data=st.data())
def test_where_a_segment_ends_does_not_depend_on_arrows_batches(
    shelf: Callable[[], Storage], records: list[Record], data: st.DataObject
) -> None:
    options = WriteOptions(codec="none", segment_bytes_max=data.draw(st.integers(1, 500)))
    cuts = sorted({0, len(records), *data.draw(st.lists(st.integers(0, len(records)), max_size=4))})
    batch = to_arrow(records)
    parts = [batch.slice(start, end - start) for start, end in zip(cuts, [*cuts[1:], len(records)], strict=True)]
    trees = []
    for batches in ([batch], parts):
        storage = shelf()
        written = LAYOUT.write(storage, WHERE, batches, options, survey=NOTHING)
        trees.append({segment.path: bytes(storage.get(segment.path)) for segment in written})

    assert trees[0] == trees[1]


def test_a_segment_ends_with_the_record_that_makes_it_large_enough(storage: Storage) -> None:
    records = some(0, 10)
    size = len(plain.write_block(records[:1]))
    written = archives.write(storage, records, codec="none", segment_bytes_max=size + 1)

    assert written[0].end_offset == 2
    assert written[0].details["uncompressed_bytes"] == len(plain.write_block(records[:2]))
    assert [segment.path[-12:] for segment in written] == [f"{n:08d}.kbs" for n in range(len(written))]


def test_a_batch_ends_with_the_record_that_makes_it_large_enough(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "BATCH_BYTES_MAX", 50)
    records = [*some(0, 7), *some(7, 2, size=100_000), *some(9, 3)]
    for codec in CODECS:
        [segment] = archives.write(storage, records, survey=NOTHING, codec=codec)
        batches = list(LAYOUT.read(storage, segment))
        assert [record for batch in batches for record in to_records(batch)] == records
        assert len(batches) > 4
        assert plain.read_segment(bytes(storage.get(segment.path))) == records


def test_an_object_too_large_to_hold_is_read_piece_by_piece(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.layouts.stored.HELD_BYTES_MAX", 100)
    monkeypatch.setattr("maxbrod.layouts.stored.PIECE_BYTES", 37)
    records = some(0, 50)
    for codec in CODECS:
        [segment] = archives.write(storage, records, survey=NOTHING, codec=codec)
        assert archives.read(storage, segment) == records


def test_only_the_columns_that_are_asked_for_are_given(storage: Storage) -> None:
    [segment] = archives.write(storage, some(0, 5))
    [batch] = LAYOUT.read(storage, segment, columns=["value", "offset"])

    assert batch.schema.names == ["offset", "value"]
    with pytest.raises(UsageError, match="no such record column"):
        list(LAYOUT.read(storage, segment, columns=["colour"]))


def test_every_batch_has_the_schema_of_records(storage: Storage) -> None:
    batch = to_arrow(some(0, 4), timestamp_type=1, leader_epoch=3, producer_id=9, transactional=True)
    [segment] = LAYOUT.write(storage, WHERE, [batch], WriteOptions(), survey=NOTHING)
    [found] = LAYOUT.read(storage, segment)

    assert found.schema.equals(RECORD_SCHEMA)
    found.validate(full=True)
    # What the layout is documented to lose has Kafka's own default.
    assert found.column("timestamp_type").to_pylist() == [0] * 4
    assert found.column("producer_id").to_pylist() == [-1] * 4


def test_transaction_markers_never_become_records(storage: Storage) -> None:
    batch = to_arrow(some(0, 4), control=[False, True, False, True])
    [segment] = LAYOUT.write(storage, WHERE, [batch], WriteOptions(), survey=NOTHING)

    assert [record.offset for record in archives.read(storage, segment)] == [0, 2]


def test_no_records_make_no_segment(storage: Storage) -> None:
    empty = pa.RecordBatch.from_pylist([], schema=RECORD_SCHEMA)

    assert LAYOUT.write(storage, WHERE, [empty], WriteOptions(), survey=NOTHING) == []
    assert list(storage.list()) == []


def test_offset_headers_are_added_as_the_document_has_them(storage: Storage) -> None:
    records = some(3, 4)
    where = TopicPartition(topic="orders", partition=12)
    [segment] = archives.write(storage, records, where=where, extra={"offset_headers": "true"})

    for before, after in zip(records, archives.read(storage, segment), strict=True):
        added = [
            (b"x-kafka-backup-offset", str(before.offset).encode()),
            (b"x-kafka-backup-timestamp", str(before.timestamp).encode()),
            (b"x-kafka-backup-partition", b"12"),
        ]
        assert after.headers == [*before.headers, *added]


def test_offset_headers_follow_those_of_a_sliced_batch(storage: Storage) -> None:
    records = some(0, 9)
    batch = to_arrow(records).slice(4, 3)
    options = WriteOptions(extra={"offset_headers": "true"})
    [segment] = LAYOUT.write(storage, WHERE, [batch], options, survey=NOTHING)

    assert [record.headers[:-3] for record in archives.read(storage, segment)] == [
        record.headers for record in records[4:7]
    ]


def test_records_that_do_not_rise_are_refused(storage: Storage) -> None:
    with pytest.raises(RefusedError, match="order of offsets"):
        archives.write(storage, [*some(5, 2), *some(6, 1)])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"codec": "snappy"}, "no codec"),
        ({"level": 23}, "no level"),
        ({"level": 0}, "no level"),
        ({"codec": "lz4", "level": 3}, "no levels"),
        ({"segment_bytes_max": 1 << 40}, "a segment has"),
        ({"extra": {"colour": "red"}}, "no such option"),
        ({"extra": {"offset_headers": "yes"}}, "true or false"),
        ({"extra": {"backup_id": "../x"}}, "cannot be the id"),
    ],
)
def test_options_that_make_no_sense_are_refused(storage: Storage, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        archives.write(storage, some(0, 1), **options)


@pytest.mark.parametrize("topic", ["..", "a/b", "", "x" * 250])
def test_a_topic_never_leads_out_of_its_folder(storage: Storage, topic: str) -> None:
    where = TopicPartition(topic=topic, partition=0)
    with pytest.raises(UsageError, match="cannot be a topic"):
        archives.write(storage, some(0, 1), where=where)


@pytest.mark.parametrize("level", range(1, 23))
def test_every_level_of_zstd_can_be_read(storage: Storage, level: int) -> None:
    [segment] = archives.write(storage, some(0, 50), level=level)

    assert archives.read(storage, segment) == some(0, 50)

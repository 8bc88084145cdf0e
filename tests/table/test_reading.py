"""The table holds what the archive holds, and a query reads no more objects than it must."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

from maxbrod.errors import BatchLimitError, CorruptDataError, MaxbrodError, UsageError
from maxbrod.layouts.kafka.described_batches import TimestampScan
from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.model import Codec
from maxbrod.table.source import ArchiveSource
from support.native_logs import ABORT, COMMIT, NAME, data_batch, marker, pack
from support.plain_batches import Record
from support.table_archives import Reads, query, write

if TYPE_CHECKING:
    from pathlib import Path


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FAR = 2**62


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """A hundred segments of ten records, in batches of five."""
    batches = [data_batch(base, 5) for base in range(0, 1000, 5)]
    rows = write(tmp_path / "archive", batches, limits=SegmentLimits(records_max=10))
    assert len(rows) == 100
    return tmp_path / "archive"


def test_every_field_of_a_record_is_in_the_table(tmp_path: Path) -> None:
    records = [
        Record(offset=7, timestamp=-1, key=None, value=b"", headers=[]),
        Record(offset=8, timestamp=1_700_000_000_123, key=b"", value=None, headers=[(b"h", None), (b"h", b"")]),
        Record(offset=9, timestamp=FAR, key=b"k", value=b"v", headers=[(b"\xff", b"x")]),
    ]
    write(tmp_path / "archive", [pack(records, producer_id=11, producer_epoch=1, base_sequence=5, leader_epoch=3)])
    rows = query(
        tmp_path / "archive", columns="*, timestampMs, topicId, leaderEpoch, producerId, producerEpoch, sequence"
    )
    shared = {
        "topic": NAME.topic,
        "topicId": NAME.topic_id,
        "partition": NAME.partition,
        "timestampType": 0,
        "leaderEpoch": 3,
        "producerId": 11,
        "producerEpoch": 1,
    }
    own = [
        (7, None, b"", -1, None, 5),
        (8, b"", None, 1_700_000_000_123, [{"key": "h", "value": None}, {"key": "h", "value": b""}], 6),
        (9, b"k", b"v", FAR, [{"key": "\ufffd", "value": b"x"}], 7),
    ]
    assert rows == [
        {
            **shared,
            "offset": offset,
            "key": key,
            "value": value,
            "timestampMs": at,
            # Spark's microseconds do not reach so far.
            "timestamp": None if at == FAR else EPOCH + timedelta(milliseconds=at),
            "headers": headers,
            "sequence": sequence,
        }
        for offset, key, value, at, headers, sequence in own
    ]


@pytest.mark.parametrize(
    ("filters", "expected", "objects"),
    [
        ([EqualTo(("offset",), 500)], [500], 1),
        ([GreaterThanOrEqual(("offset",), 498), LessThan(("offset",), 512)], list(range(498, 512)), 3),
        ([EqualTo(("offset",), 5000)], [], 0),
        ([EqualTo(("topic",), "another")], [], 0),
        ([EqualTo(("partition",), NAME.partition + 1)], [], 0),
        ([GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=1993))], list(range(993, 1000)), 1),
        ([LessThanOrEqual(("offset",), 2**63 - 1), LessThan(("offset",), 3)], [0, 1, 2], 1),
        ([GreaterThan(("offset",), 2**63 - 1)], [], 0),
        ([LessThanOrEqual(("timestampMs",), 2**63 - 1)], list(range(1000)), 100),
        ([], list(range(1000)), 100),
    ],
)
def test_a_query_never_touches_objects_that_it_need_not(
    hundred: Path, filters: list[Filter], expected: list[int], objects: int
) -> None:
    reads = Reads()
    assert offsets(query(hundred, filters, reads, columns="offset")) == expected
    assert (len(reads.objects), len(reads.paths)) == (objects, objects)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_millisecond_in_a_thousand_segments_needs_fewer_than_three_objects(tmp_path: Path, codec: Codec) -> None:
    """As a small backup writes them: looked into as far as that costs next to nothing."""
    batches = [data_batch(base, 5, codec=codec) for base in range(0, 5000, 5)]
    limits = SegmentLimits(records_max=5)
    rows = write(tmp_path / "archive", [b"".join(batches)], limits=limits, exact=False, look=TimestampScan())
    assert len(rows) == 1000
    for condition in (EqualTo(("timestampMs",), 3503), EqualTo(("timestamp",), EPOCH + timedelta(milliseconds=3503))):
        reads = Reads()
        assert offsets(query(tmp_path / "archive", [condition], reads)) == [2503]
        assert len(reads.objects) == 1


def test_a_record_older_than_the_first_of_its_batch_is_never_missed(tmp_path: Path) -> None:
    """In segments without a recorded look, and in segments with one."""
    late = [Record(offset=5, timestamp=9000, key=None, value=b""), Record(offset=6, timestamp=1, key=None, value=b"")]
    for look in (None, TimestampScan()):
        archive = tmp_path / f"archive-{look is None}"
        batches = [data_batch(0, 5), pack(late), data_batch(7, 5)]
        write(archive, batches, limits=SegmentLimits(records_max=2), exact=False, look=look)
        reads = Reads()
        assert offsets(query(archive, [EqualTo(("timestampMs",), 1)], reads)) == [6]
        assert len(reads.objects) == (3 if look is None else 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffset": "990"}, list(range(990, 1000))),
        ({"endingOffset": "7", "partitions": f"0-{NAME.partition}"}, list(range(7))),
        ({"since": "1003", "until": "1006"}, [3, 4, 5]),
        ({"topics": "ord*,/o.*/", "endingOffset": "2"}, [0, 1]),
        ({"partitions": "77"}, []),
        ({"partitions": f"0-{NAME.partition - 1}"}, []),
    ],
)
def test_options_bound_what_is_read(hundred: Path, options: dict[str, str], expected: list[int]) -> None:
    assert offsets(query(hundred, (), None, **options)) == expected


def test_a_large_object_is_read_no_further_than_the_query_goes(tmp_path: Path) -> None:
    write(tmp_path / "archive", [data_batch(base, value=bytes(1 << 20)) for base in range(20)])
    whole, beginning = Reads(), Reads()
    assert offsets(query(tmp_path / "archive", (), whole, columns="offset")) == list(range(20))
    assert offsets(query(tmp_path / "archive", (), beginning, columns="offset", endingOffset="2")) == [0, 1]
    assert (len(whole.paths), len(beginning.paths), len(whole.objects)) == (3, 1, 1)


def test_splits_are_as_large_as_they_may_be(hundred: Path) -> None:
    def count(**options: str) -> int:
        source = ArchiveSource({"path": str(hundred), **options})
        return len(source.reader(source.schema()).partitions())

    assert (count(splitBytes="1"), count(), count(splitBytes="1", endingOffset="30")) == (100, 1, 3)


def test_aborted_records_are_read_only_where_they_are_asked_for(tmp_path: Path) -> None:
    aborted = data_batch(0, 3, attributes=0x10, producer_id=1, producer_epoch=0)
    committed = data_batch(4, 2, attributes=0x10, producer_id=2, producer_epoch=0)
    log = b"".join([aborted, marker(3, 1, ABORT), committed, marker(6, 2, COMMIT), data_batch(7)])
    write(tmp_path / "archive", [log], aborted=[[(1, 0)]])
    assert offsets(query(tmp_path / "archive")) == [4, 5, 7]
    everything = query(tmp_path / "archive", isolationLevel="read_uncommitted", columns="offset,transactional")
    assert [(row["offset"], row["transactional"]) for row in everything] == [
        *((each, True) for each in (0, 1, 2, 4, 5)),
        (7, False),
    ]


def test_the_table_as_of_a_run_ends_where_the_archive_ended_then(tmp_path: Path) -> None:
    write(tmp_path / "archive", [data_batch(0, 5)], run_id="run-1")
    write(tmp_path / "archive", [data_batch(5, 5)], run_id="run-2", written_at=2)
    assert offsets(query(tmp_path / "archive", asOf="run-1")) == list(range(5))
    assert offsets(query(tmp_path / "archive", asOf="latest")) == list(range(10))
    with pytest.raises(UsageError, match="run-7"):
        query(tmp_path / "archive", asOf="run-7")


def test_a_topic_that_was_created_again_never_mixes_with_the_old_one(tmp_path: Path) -> None:
    write(tmp_path / "archive", [data_batch(0, 2, value=b"old")])
    newer = "new" + NAME.topic_id[3:]
    write(tmp_path / "archive", [data_batch(0, 2, value=b"new")], run_id="run-2", topic_id=newer, written_at=2)
    assert [row["value"] for row in query(tmp_path / "archive")] == [b"new"] * 2
    both = query(tmp_path / "archive", incarnations="all", columns="value,topicId")
    assert {(row["value"], row["topicId"]) for row in both} == {(b"old", NAME.topic_id), (b"new", newer)}


def test_damage_is_never_read_as_data(hundred: Path) -> None:
    damaged = sorted((hundred / "segments").rglob("*.log"))[50]
    data = bytearray(damaged.read_bytes())
    data[-3] ^= 1
    damaged.chmod(0o600)
    damaged.write_bytes(data)
    with pytest.raises(CorruptDataError, match=damaged.name):
        query(hundred)
    assert offsets(query(hundred, endingOffset="500")) == list(range(500))


def test_a_batch_beyond_the_limit_is_named_and_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.table.read.rows._UNPACKED_BYTES_MAX", 1 << 20)
    large = data_batch(2, 2, value=bytes(1 << 20), codec=Codec.ZSTD)
    write(tmp_path / "archive", [data_batch(0, 2), large, data_batch(4)])
    with pytest.raises(BatchLimitError, match=r"unpack to more than 1048576 bytes, which is the limit \(in .*offset 2"):
        query(tmp_path / "archive")
    assert offsets(query(tmp_path / "archive", endingOffset="2")) == [0, 1]
    assert offsets(query(tmp_path / "archive", startingOffset="4")) == [4]


def test_what_unpacks_to_much_goes_to_spark_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.table.read.rows._PIECE_BYTES", 1 << 20)
    large = [data_batch(base, 30, value=bytes(100_000), codec=Codec.ZSTD) for base in (0, 30)]
    write(tmp_path / "archive", large)
    source = ArchiveSource({"path": str(tmp_path / "archive")})
    reader = source.reader(source.schema())
    found = [batch for each in reader.partitions() for batch in reader.read(each)]
    assert [row["offset"] for batch in found for row in batch.to_pylist()] == list(range(60))
    assert max(batch.nbytes for batch in found) <= 1 << 20


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "orders"},
        {"columns": "kee"},
        {"columns": "key,key"},
        {"partitions": "x"},
        {"since": "2026-01-01"},
        {"startingOffset": "-1"},
        {"endingOffset": str(2**63)},
        {"isolationLevel": "committed"},
        {"incarnations": "old"},
        {"splitBytes": "0"},
        {"storage.s3.nonsense": "secret-word"},
        {"topics": "absent"},
        {"topics": "ord*,/x.*/"},
        {"layout": "none"},
    ],
)
def test_options_that_cannot_be_right_are_refused(hundred: Path, options: dict[str, str]) -> None:
    with pytest.raises(MaxbrodError) as refused:
        query(hundred, (), None, **options)
    assert isinstance(refused.value, UsageError)
    assert "secret-word" not in str(refused.value)

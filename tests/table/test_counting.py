"""What the catalog alone can count is counted without a look at any object, and is what a query would find."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import maxbrod
from maxbrod.config import Config
from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.query.options import ScopeOptions
from maxbrod.query.run import Query
from maxbrod.table.read.counts import Count, count_records, count_whole
from maxbrod.table.read.options import parse_options
from support.native_logs import ABORT, COMMIT, NAME, data_batch, marker
from support.table_archives import Reads, query, write

if TYPE_CHECKING:
    from pathlib import Path

UNREAD = "topic,partition,topicId"


def counted(url: Path, **options: str) -> int | None:
    parsed = parse_options({"path": str(url), **options})
    found, whole = count_records(parsed), count_whole(parsed)
    # Without a limit both know the same. With one, only slices can tell.
    assert whole == (None if options.keys() - {"isolationLevel"} else found)
    if found is None:
        return None
    assert all((each.topic, each.topic_id, each.partition) == _PLACE for each in found)
    return sum(each.records for each in found)


_PLACE = (NAME.topic, NAME.topic_id, NAME.partition)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Ten segments of ten offsets: dense ones, and the last with a committed transaction."""
    dense = [data_batch(base, 5) for base in range(0, 90, 5)]
    transaction = data_batch(90, 9, attributes=0x10, producer_id=2, producer_epoch=0) + marker(99, 2, COMMIT)
    write(tmp_path / "archive", [*dense, transaction], limits=SegmentLimits(records_max=10))
    return tmp_path / "archive"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 99),
        ({"isolationLevel": "read_uncommitted"}, 99),
        ({"endingOffset": "37"}, 37),
        ({"startingOffset": "12", "endingOffset": "13"}, 1),
        ({"startingOffset": "90"}, 9),
        ({"until": "1090", "endingOffset": "90"}, 90),
        ({"since": "1010", "until": "1030", "endingOffset": "90"}, 20),
        ({"partitions": str(NAME.partition + 1)}, 0),
        ({"startingOffset": "500"}, 0),
        ({"asOf": "latest"}, 99),
        # A limit goes through a segment of which not enough is known.
        ({"startingOffset": "95"}, None),
        ({"since": "1015"}, None),
    ],
)
def test_a_count_by_the_catalog_is_what_a_query_finds_and_reads_no_object(
    archive: Path, options: dict[str, str], expected: int | None
) -> None:
    found = len(query(archive, (), None, columns="offset", **options))
    reads = Reads()
    unread = query(archive, (), reads, columns=UNREAD, **options)
    assert len(unread) == found
    assert all(row == dict(zip(("topic", "partition", "topicId"), _ordered(), strict=True)) for row in unread)
    for log in (archive / "segments").rglob("*.log"):
        log.unlink()
    assert counted(archive, **options) == expected
    if expected is not None:
        assert (expected, reads.paths) == (found, [])


def _ordered() -> tuple[Any, ...]:
    return NAME.topic, NAME.partition, NAME.topic_id


def test_aborted_records_are_never_counted(tmp_path: Path) -> None:
    aborted = data_batch(0, 3, attributes=0x10, producer_id=1, producer_epoch=0)
    write(tmp_path / "archive", [aborted + marker(3, 1, ABORT) + data_batch(4, 2)], aborted=[[(1, 0)]])
    assert counted(tmp_path / "archive") is None
    assert counted(tmp_path / "archive", isolationLevel="read_uncommitted") == 5
    assert len(query(tmp_path / "archive", columns=UNREAD)) == 2


def test_holes_are_never_counted(tmp_path: Path) -> None:
    write(tmp_path / "archive", [data_batch(0, 3) + data_batch(10, 2)])
    assert (counted(tmp_path / "archive"), counted(tmp_path / "archive", endingOffset="11")) == (5, None)
    assert len(query(tmp_path / "archive", columns=UNREAD, endingOffset="11")) == 4


def test_counts_are_told_by_partition_and_as_of_a_run(tmp_path: Path) -> None:
    write(tmp_path / "archive", [data_batch(0, 5)], run_id="run-1")
    write(tmp_path / "archive", [data_batch(5, 4)], run_id="run-2", written_at=2)
    again = "new" + NAME.topic_id[3:]
    write(tmp_path / "archive", [data_batch(0, 2)], run_id="run-3", topic_id=again, written_at=3)
    assert counted(tmp_path / "archive", asOf="run-1") == 5
    both = count_records(parse_options({"path": str(tmp_path / "archive"), "incarnations": "all"}))
    assert both is not None
    assert set(both) == {
        Count(topic=NAME.topic, partition=NAME.partition, topic_id=topic_id, records=records)
        for topic_id, records in ((NAME.topic_id, 9), (again, 2))
    }


def test_counting_on_spark_and_in_sql_opens_no_object(spark: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    rows = write(tmp_path / "archive", [data_batch(base, 10) for base in range(0, 200_000, 10_000)])
    for row in rows:
        (tmp_path / "archive" / row.path).unlink(missing_ok=True)
    maxbrod.register(spark)
    assert spark.read.format("maxbrod").option("columns", "partition").load(url).count() == 200
    with Query(Config(archive=url), ScopeOptions(), session=spark) as opened:
        for sql in ("SELECT count(*) FROM records", "SELECT count(*) FROM records GROUP BY topic, partition"):
            assert opened.collect(opened.ask(sql)).table.columns[0].to_pylist() == [200]

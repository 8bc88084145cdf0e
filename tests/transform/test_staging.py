"""Records through a real Spark into a staging archive: what no expression names is the same afterwards, bit by bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings

from maxbrod.archive.archive import Archive, open_archive
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.config import StorageConfig
from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.model import Codec, GapReason
from maxbrod.restore import staging as engine
from maxbrod.restore.staging import changes_in, remove_staged
from maxbrod.storage.stores import open_storage
from maxbrod.transform.frame import run_transform_job
from maxbrod.transform.plan import Changes
from support.native_logs import ABORT, batches, data_batch, marker, pack
from support.plain_batches import Record
from support.stages import asked, records_in, stage, staging_of
from support.storages import s3_options
from support.table_archives import write

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.s3 import S3Server

pytestmark = pytest.mark.full

FAR = (1 << 62) - 1
ODD = [
    Record(offset=3, timestamp=-1, key=None, value=None, headers=[]),
    Record(offset=4, timestamp=FAR, key=b"", value=b"", headers=[(b"", None), (b"", b""), (b"a", b"1"), (b"a", b"2")]),
    Record(offset=6, timestamp=-(1 << 52), key=b"\xff\xfe", value=b"\0" * 10, headers=[(b"\xff\xc3", b"\xff")]),
    Record(offset=9, timestamp=1_760_000_000_123, key=b"user-17", value=b"secret", headers=[(b"trace", b"x")]),
]


def same(record: dict[str, Any]) -> dict[str, Any]:
    """What travels: producers and transactions stay behind, and a message without a time gets a kind of time."""
    fields = ("offset", "timestamp_ms", "timestamp_type", "key", "value", "headers", "leader_epoch")
    return {**{name: record[name] for name in fields}, "timestamp_type": max(record["timestamp_type"], 0)}


def assert_tiles(staged: Archive, source: Archive) -> None:
    wanted = {
        each: (position.first_offset, position.end_offset) for each, position in source.catalog.positions().items()
    }
    faults = find_tiling_faults(staged.catalog.rows(), wanted)
    assert not list(faults.holes)
    assert not list(faults.overlaps)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("staging")


@given(log=batches())
@settings(max_examples=6, phases=[Phase.generate])  # each is a job of Spark: too slow to be made smaller
def test_fields_that_are_selected_as_they_are_stay_exactly_what_they_were(log: Any, places: Path, spark: Any) -> None:
    place = places / str(len(list(places.iterdir())))
    write(place / "archive", [batch.data for batch in log])
    select = "key as key, value as value, headers as headers, timestampMs as timestampMs"
    staging = staging_of(place / "archive", place / "staged", where="true", select=select)
    staged = stage(spark, staging)
    before = records_in(staging.source)
    assert [same(each) for each in records_in(staged)] == [same(each) for each in before]
    assert all(not each.changed and not each.dropped for each in changes_in(staged))


def test_what_is_dropped_becomes_a_hole_and_every_change_is_counted(tmp_path: Path, spark: Any) -> None:
    write(tmp_path / "archive", [pack(ODD, Codec.ZSTD)])
    staging = staging_of(
        tmp_path / "archive",
        tmp_path / "staged",
        where="key not like 'user-%'",
        select="filter(headers, h -> h.key != 'a') as headers, cast(value as string) as value",
    )
    staged = stage(spark, staging)
    found = records_in(staged)
    assert [each["offset"] for each in found] == [4, 6], "null is not true"
    assert [each["headers"] for each in found] == [
        [{"key": b"", "value": None}, {"key": b"", "value": b""}],
        [{"key": b"\xff\xc3", "value": b"\xff"}],
    ]
    assert [(each["timestamp_ms"], each["key"], each["value"]) for each in found] == [
        (FAR, b"", b""),
        (-(1 << 52), b"\xff\xfe", b"\0" * 10),
    ]
    assert changes_in(staged) == (Changes(topic="orders", read=4, kept=2, dropped=2, changed={"headers": 1}),)
    assert_tiles(staged, staging.source)
    rows = staged.catalog.rows(columns=["kind", "codec", "reason"]).to_pylist()
    assert {row["reason"] for row in rows} == {GapReason.PRUNED}
    assert {row["codec"] for row in rows if row["kind"] == "data"} == {"zstd"}, "as it was"


def test_aborted_records_and_markers_never_reach_an_expression(tmp_path: Path, spark: Any) -> None:
    chunks = [data_batch(0, 2), data_batch(2, 2, producer_id=9, producer_epoch=0, attributes=0x10), marker(4, 9, ABORT)]
    write(tmp_path / "archive", [b"".join(chunks)], aborted=[[(9, 2)]])
    staged = stage(
        spark, staging_of(tmp_path / "archive", tmp_path / "staged", where="assert_true(offset < 2) is null")
    )
    assert [each["offset"] for each in records_in(staged)] == [0, 1]


def test_an_expression_is_never_asked_about_records_that_are_dropped(tmp_path: Path, spark: Any) -> None:
    write(tmp_path / "archive", [pack(ODD)])
    select = "cast(assert_true(length(key) = 0) as string) as value"
    staged = stage(spark, staging_of(tmp_path / "archive", tmp_path / "staged", where="length(key) = 0", select=select))
    assert [each["value"] for each in records_in(staged)] == [None]


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ("cast(cast(cast(key as string) as int) as string) as value", "CAST_INVALID_INPUT"),
        ("cast(null as timestamp) as timestamp", "timestamp became null"),
        ("array(named_struct('key', cast(null as string), 'value', value)) as headers", "no key"),
    ],
)
def test_a_record_that_an_expression_cannot_do_is_told_and_nothing_is_staged(
    select: str, said: str, tmp_path: Path, spark: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "archive", [pack(ODD[3:])])
    staging = staging_of(tmp_path / "archive", tmp_path / "staged", select=select)
    with pytest.raises(UsageError) as refused:
        stage(spark, staging)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "Exception" not in "".join(capfd.readouterr())
    assert open_archive(str(tmp_path / "staged")).catalog.rows().num_rows == 0


def test_records_are_staged_in_s3_and_removed_from_there(tmp_path: Path, spark: Any, s3: S3Server) -> None:
    write(tmp_path / "archive", [data_batch(0, 20)])
    url, options = f"{s3.url}/elsewhere/restore-1", s3_options(s3)
    staged = stage(spark, staging_of(tmp_path / "archive", url, storage=options, where="offset < 3"))
    assert [each["offset"] for each in records_in(staged)] == [0, 1, 2]
    assert list(open_storage(url, options).list())
    remove_staged(url, options)
    assert not list(open_storage(url, options).list())


def test_damage_names_the_object_and_nothing_is_staged(tmp_path: Path, spark: Any) -> None:
    write(tmp_path / "archive", [data_batch(0, 20)])
    (path,) = (tmp_path / "archive" / "segments").rglob("*.log")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    staging = staging_of(tmp_path / "archive", tmp_path / "staged", where="true")
    with pytest.raises(CorruptDataError, match=path.name):
        stage(spark, staging)
    assert open_archive(str(tmp_path / "staged")).catalog.rows().num_rows == 0


def test_what_is_staged_is_never_transformed_again(tmp_path: Path, spark: Any) -> None:
    """Otherwise a second attempt would mix its own random numbers with those of the first."""
    for number in range(3):
        write(tmp_path / "archive", [data_batch(5 * number, 5)], run_id=f"run-{number}")
    staging = staging_of(tmp_path / "archive", tmp_path / "staged", select="uuid() as value")
    really, calls = run_transform_job, list[int]()

    def dying(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            # Its objects are written and not committed.
            really(*arguments, **options)
            raise KeyboardInterrupt
        return really(*arguments, **options)

    with patch.object(engine, "run_transform_job", dying), pytest.raises(KeyboardInterrupt):
        stage(spark, staging, commit_bytes=1)
    first = records_in(open_archive(str(tmp_path / "staged")))
    assert 0 < len(first) < 15
    staged = stage(spark, staging, commit_bytes=1)
    whole = records_in(staged)
    assert whole[: len(first)] == first
    assert [each["offset"] for each in whole] == list(range(15))
    assert len({each["value"] for each in whole}) == 15
    assert changes_in(staged) == (Changes(topic="orders", read=15, kept=15, changed={"value": 15}),)
    assert len(asked(staging.source)) == 1
    remove_staged(str(tmp_path / "staged"), StorageConfig())
    assert not [path for path in (tmp_path / "staged").rglob("*") if path.is_file()]

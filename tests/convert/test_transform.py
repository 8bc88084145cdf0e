"""A cleaned archive: records dropped and masked while they are converted, and never mixed with others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.check.run import check_archive
from maxbrod.config import Config
from maxbrod.convert.options import ConvertOptions
from maxbrod.convert.verb import Conversion
from maxbrod.errors import RefusedError, UsageError
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.transform.plan import Changes
from maxbrod.work.work import Work
from support.backups import back_up, config_of
from support.native_logs import data_batch, pack
from support.plain_batches import Record
from support.stages import records_in
from support.table_archives import write

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.convert.verb import ConvertReport
    from maxbrod.sandbox.cluster import Cluster

CLEAN = {"where": "key is null or key not like 'user-1%'", "select": "'-' as value"}


def converted(source: Path, target: Path, session: Any, *, to: str = "kafka", **transform: Any) -> ConvertReport:
    options = ConvertOptions(source=str(source), target=str(target), to=to, **transform)
    with Work(Config(), session=session) as work:
        return Conversion(work, options).run()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    records = [
        Record(offset=at, timestamp=1000 + at, key=f"user-{at}".encode(), value=b"v", headers=[(b"h", None)])
        for at in range(20)
    ]
    write(tmp_path / "archive", [pack(records[:15], leader_epoch=3) + pack(records[15:], leader_epoch=5)])
    return tmp_path / "archive"


def test_a_conversion_with_expressions_opens_its_session_itself(source: Path, tmp_path: Path, spark: Any) -> None:
    """Before it opens the target. Here it finds the session that is open already."""
    assert converted(source, tmp_path / "clean", None, **CLEAN).exit_code == 0


def test_a_cleaned_archive_has_no_record_that_was_to_go_and_explains_each(
    source: Path, tmp_path: Path, spark: Any
) -> None:
    before = records_in(open_archive(str(source)))
    report = converted(source, tmp_path / "clean", spark, **CLEAN)
    assert (report.exit_code, report.notices) == (0, ())
    clean = open_archive(str(tmp_path / "clean"))
    assert [(each["offset"], each["value"], each["timestamp_ms"]) for each in records_in(clean)] == [
        (at, b"-", 1000 + at) for at in (0, *range(2, 10))
    ]
    assert b"user-1" not in b"".join(path.read_bytes() for path in (tmp_path / "clean").rglob("*.log*"))
    assert check_archive(clean).exit_code == 0, "each offset is there or explained"
    assert report.changes == (Changes(topic="orders", read=20, kept=9, dropped=11, changed={"value": 9}),)
    assert report.topics[0].equal is None, "nobody claims that they are the same"
    assert records_in(open_archive(str(source))) == before
    assert clean.catalog.positions() == open_archive(str(source)).catalog.positions(), "backups go on from there"


def test_what_is_new_is_cleaned_too_and_never_mixed_with_what_went_through_something_else(
    source: Path, tmp_path: Path, spark: Any
) -> None:
    converted(source, tmp_path / "clean", spark, **CLEAN)
    write(source, [data_batch(20, 3)], run_id="run-2", written_at=2)
    for other in ({}, {"where": "true"}):
        with pytest.raises(RefusedError, match="other expressions"):
            converted(source, tmp_path / "clean", spark, **other)
    report = converted(source, tmp_path / "clean", spark, **CLEAN)
    assert report.changes == (Changes(topic="orders", read=3, kept=3, changed={"value": 3}),)
    found = records_in(open_archive(str(tmp_path / "clean")))
    assert [each["offset"] for each in found][-3:] == [20, 21, 22]
    converted(source, tmp_path / "plain", spark)
    with pytest.raises(RefusedError, match="or through none"):
        converted(source, tmp_path / "plain", spark, **CLEAN)


def test_a_backup_goes_on_in_a_cleaned_archive_and_brings_nothing_back(
    cluster: Cluster, topic: str, tmp_path: Path, spark: Any
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(30))
    assert back_up(config_of(cluster, tmp_path / "archive", topic)).complete
    converted(tmp_path / "archive", tmp_path / "clean", spark, where="offset % 3 = 0")
    produce(cluster, topic, numbered(5))
    report = back_up(config_of(cluster, tmp_path / "clean", topic))
    assert (report.complete, [notice.kind for notice in report.notices]) == (True, [])
    clean = open_archive(str(tmp_path / "clean"))
    assert [each["offset"] for each in records_in(clean)] == [*range(0, 30, 3), *range(30, 35)]
    assert check_archive(clean).exit_code == 0


def test_what_is_wrong_is_told_before_there_is_anything_at_the_target(source: Path, tmp_path: Path, spark: Any) -> None:
    with pytest.raises(UsageError, match="UNRESOLVED_COLUMN"):
        converted(source, tmp_path / "clean", spark, where="keys = 'x'")
    with pytest.raises(UsageError, match="layout kbak"):
        converted(source, tmp_path / "clean", spark, to="kbak", **CLEAN)
    assert not (tmp_path / "clean").exists()

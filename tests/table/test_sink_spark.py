"""Spark itself writes archives: of a real backup and back into Kafka, under kills, as a stream."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import maxbrod
from maxbrod.archive.archive import open_archive
from maxbrod.check.deep import deep_check
from maxbrod.config import Config
from maxbrod.sandbox.topics import create_topic
from maxbrod.work.work import Work
from support.backups import back_up, config_of
from support.ledger import Ledger
from support.processes import environment, program
from support.programs.dying_stream import LAST, start
from support.restores import Command
from support.sinks import assert_sound, table, values
from support.sparkless import without_spark as comparing_without_spark
from support.sparkless import without_spark as restoring_without_spark
from support.topics import KEEP, transact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full


@pytest.fixture
def session(spark: Any) -> Any:
    maxbrod.register(spark)
    return spark


def test_a_written_archive_is_one_like_any_other(
    session: Any, cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, partitions=2, config=KEEP)
    Ledger().write(cluster, topic, 300)
    transact(Ledger(), cluster, topic, 20, commit=False)
    Ledger().write(cluster, topic, 100)
    Ledger().write(cluster, topic, 50, partition=1)
    assert back_up(config_of(cluster, tmp_path / "backup", topic)).complete

    written = tmp_path / "written"
    maxbrod.write(session.read.format("maxbrod").load(str(tmp_path / "backup")).repartition(3), str(written))

    assert table(written) == table(tmp_path / "backup")
    checked = deep_check(Work(Config(), session=session), open_archive(str(written)))
    assert checked.exit_code == 0
    command = Command(cluster, written, capsys)
    with comparing_without_spark(), restoring_without_spark():
        assert command.json("compare")["equal"], "with the topic that it came from"
        command("restore", "--suffix", "-new", "--offsets", "exact")
        report = command.json("compare", "--suffix", "-new")
    assert report["equal"], report["differences"]
    assert report["source_records"] == 450


def test_a_task_that_is_repeated_leaves_nothing_twice(session: Any, tmp_path: Path) -> None:
    def dying(batches: Iterator[Any]) -> Iterator[Any]:
        import signal  # noqa: PLC0415

        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        for batch in batches:
            yield batch
            if context.partitionId() == 1 and context.attemptNumber() == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    frame = session.range(0, 3000, 1, 3).selectExpr("cast(id as string) as value", "cast(id % 2 as int) as partition")
    archive = tmp_path / "archive"
    doomed = frame.mapInArrow(dying, frame.schema)
    doomed.write.format("maxbrod").option("topic", "t").mode("append").save(str(archive))
    found = values(archive)
    assert {place: [offset for offset, _ in rows] for place, rows in found.items()} == {
        ("t", 0): list(range(1500)),
        ("t", 1): list(range(1500)),
    }
    assert [int(value) for _, value in found["t", 1]] == list(range(1, 3000, 2)), "in the order of tasks"
    assert_sound(archive)


def test_a_job_that_fails_leaves_no_row(session: Any, tmp_path: Path) -> None:
    frame = session.range(0, 100, 1, 2).selectExpr("'v' as value", "0 as partition", "if(id < 99, 't', null) as topic")
    with pytest.raises(Exception, match="the column topic is null"):
        frame.write.format("maxbrod").mode("append").save(str(tmp_path / "archive"))
    assert open_archive(str(tmp_path / "archive")).catalog.version == 0
    with pytest.raises(Exception, match="never overwritten"):
        frame.write.format("maxbrod").mode("overwrite").save(str(tmp_path / "archive"))


def put_lines(folder: Path, first: int, files: int) -> list[bytes]:
    """Files of 20 lines each, whole or absent."""
    folder.mkdir(exist_ok=True)
    texts = [[f"line {20 * number + n}" for n in range(20)] for number in range(first, first + files)]
    for number, lines in enumerate(texts, first):
        (folder.parent / "draft").write_text("\n".join(lines))
        (folder.parent / "draft").rename(folder / f"{number:04}.txt")
    return [line.encode() for lines in texts for line in lines]


def assert_streamed(archive: Path, expected: list[bytes]) -> None:
    """Every line is there once, without a hole in the offsets."""
    found = values(archive)
    assert sorted(value for rows in found.values() for _, value in rows) == sorted(expected)
    assert all([offset for offset, _ in rows] == list(range(len(rows))) for rows in found.values())
    assert_sound(archive)


def test_a_stream_that_is_killed_before_spark_notes_a_commit_loses_nothing_and_doubles_nothing(
    session: Any, tmp_path: Path
) -> None:
    lines, checkpoint, archive = (tmp_path / name for name in ("lines", "checkpoint", "archive"))
    expected = put_lines(lines, 0, LAST + 3)
    killed = subprocess.run(
        program("dying_stream", lines, checkpoint, archive),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode != 0
    assert open_archive(str(archive)).catalog.version == LAST + 1, killed.stderr
    assert {path.name for path in (checkpoint / "commits").glob("[0-9]*")} == {str(batch) for batch in range(LAST)}
    assert sum(map(len, values(archive).values())) == 20 * (LAST + 1)

    start(session, lines, checkpoint, archive).awaitTermination()
    assert (checkpoint / "commits" / str(LAST)).exists(), "it was run once more"
    assert_streamed(archive, expected)

    more = put_lines(lines, LAST + 3, 1)
    start(session, lines, checkpoint, archive).awaitTermination()
    assert_streamed(archive, expected + more)
    assert open_archive(str(archive)).catalog.version == LAST + 4, "a commit for each file, and none besides"

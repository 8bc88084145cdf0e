"""Records are filtered, masked and rewritten by a real Spark on their way into a real cluster."""

from __future__ import annotations

import hashlib
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka.partitioner.default import murmur2

from maxbrod.archive.archive import open_archive
from maxbrod.check.run import check_archive
from maxbrod.restore import run as engine
from maxbrod.sandbox.topics import offsets
from maxbrod.work.work import Work
from support.archives import damage
from support.backups import back_up
from support.ledger import NOW_MS
from support.processes import environment, program
from support.programs.dying_transform import with_expressions
from support.restore_faults import archive, renamed
from support.restore_oracle import assert_restored, log_of
from support.restores import Command, put, stand

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.restore.report import RestoreReport
    from maxbrod.sandbox.cluster import Cluster
    from support.plain_log import Record

pytestmark = pytest.mark.full

PARTITIONS = 2
DAY_MS = 86_400_000
Archived = tuple["Config", list[dict[int, "Record"]]]


@pytest.fixture
def archived(cluster: Cluster, topic: str, tmp_path: Path) -> Archived:
    """With a group of the topic's name, in the middle of both partitions."""
    config, records = archive(cluster, topic, tmp_path / "archive", partitions=PARTITIONS)
    put(cluster, topic, {(topic, 0): 120, (topic, 1): 7})
    assert back_up(config).complete
    return config, records


def restore(config: Config, request: RestoreRequest, spark: Any) -> RestoreReport:
    with engine.Restore(Work(config, session=spark), request) as work:
        report = work.run(work.plan())
    assert report.exit_code == 0, report.partitions
    return report


def is_kept(record: Record) -> bool:
    return record.key is None or len(record.key) < 12


def masked(value: bytes | None) -> bytes | None:
    return None if value is None else hashlib.sha256(value).hexdigest().encode()


def staged_in(config: Config) -> list[Path]:
    return [path for path in Path(str(config.archive)).glob("restores/*/staged/**/*") if path.is_file()]


def visible(cluster: Cluster, topic: str, partition: int) -> dict[int, Record]:
    """Fillers below the start of a log are still on the disk."""
    start = offsets(cluster, topic, partition)[0]
    return {at: each for at, each in log_of(cluster, topic, partition).items() if at >= start}


def topics_of(cluster: Cluster) -> set[str]:
    with cluster.admin() as admin:
        return set(admin.list_topics())


def test_records_are_dropped_and_masked_and_all_else_stays_exactly_what_it_was(
    cluster: Cluster, topic: str, archived: Archived, spark: Any
) -> None:
    config, truth = archived
    request = renamed(where="key is null or length(key) < 12", select="sha2(value, 256) as value", groups=(topic,))
    report = restore(config, request, spark)
    for partition, records in enumerate(truth):
        kept = {at: each._replace(value=masked(each.value)) for at, each in records.items() if is_kept(each)}
        assert 0 < len(kept) < len(records)
        assert_restored(cluster, f"new-{topic}", kept, partition=partition)
        assert offsets(cluster, f"new-{topic}", partition)[1] == offsets(cluster, topic, partition)[1]
    stands = stand(cluster, topic)
    assert (stands[f"new-{topic}", 0], stands[f"new-{topic}", 1]) == (120, 7)
    every = [each for records in truth for each in records.values()]
    assert report.transform is not None
    (changes,) = report.transform.topics
    assert (changes.read, changes.kept) == (len(every), sum(map(is_kept, every)))
    assert changes.dropped == changes.read - changes.kept
    assert changes.changed == {"value": sum(is_kept(each) and each.value is not None for each in every)}
    assert not staged_in(config)


def test_a_key_that_is_rewritten_goes_where_kafka_would_send_it(
    cluster: Cluster, topic: str, archived: Archived, spark: Any
) -> None:
    """And a time that is rewritten is not the one that records are chosen by."""
    config, truth = archived
    select = "sha2(key, 256) as key, timestamp + interval 1 day as timestamp"
    request = renamed("auto", select=select, partition_count=3, until_ms=NOW_MS)
    report = restore(config, request, spark)
    wanted = []
    for source, records in enumerate(truth):
        for each in records.values():
            key = masked(each.key)
            if each.timestamp_ms < NOW_MS:
                number = source % 3 if key is None else (murmur2(key) & 0x7FFFFFFF) % 3
                wanted.append((number, each._replace(key=key, timestamp_ms=each.timestamp_ms + DAY_MS)))
    found = [(number, each) for number in range(3) for each in log_of(cluster, f"new-{topic}", number).values()]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert report.transform is not None
    (changes,) = report.transform.topics
    assert changes.read == len(wanted), "what is too young is not even read"
    assert changes.changed["timestamp"] == len(wanted)


def test_what_is_wrong_is_told_before_anything_is_created(
    cluster: Cluster, topic: str, archived: Archived, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    del spark  # The command finds it open, and starts no other.
    folder = Path(str(archived[0].archive))
    command = Command(cluster, folder, capsys)
    words = ("restore", "--topic", topic, "--prefix", "new-", "--yes")
    command(*words, "--where", "keys = 'x'", exits=2)
    assert "UNRESOLVED_COLUMN" in command.said
    assert "\tat " not in command.said
    assert command.json(*words, "--select", "offset + 1 as offset", exits=2)["error"] == "UsageError"
    command(*words, "--staging", str(folder), exits=2)

    planned = command.json(*words, "--where", "offset < 50", "--dry-run")
    assert (planned["transform"]["where"], planned["transform"]["fields"]) == ("offset < 50", [])
    told = command(*words, "--where", "offset < 50", "--dry-run")
    assert "only records where offset < 50" in told
    for path in (*folder.glob("segments/**/*.log*"), *folder.glob("packs/*")):
        damage(path)
    command(*words, "--where", "offset < 50", exits=4)
    assert f"new-{topic}" not in topics_of(cluster)
    assert not (folder / "restores").exists() or not list((folder / "restores").glob("*/plan.json.zst"))


def test_a_report_says_what_was_changed_and_staging_may_be_elsewhere(
    cluster: Cluster, topic: str, archived: Archived, spark: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    del spark  # As above.
    command = Command(cluster, archived[0].archive, capsys)
    words = ("restore", "--topic", topic, "--prefix", "new-", "--yes", "--staging", str(tmp_path / "elsewhere"))
    told = command(*words, "--where", "partition = 1 and offset < 5", "--select", "'x' as value")
    assert "only records where partition = 1 and offset < 5" in told
    assert "rewritten: value, as 'x' as value" in told
    assert "Transformed" in told
    assert "complete" in told
    assert {each.value for each in log_of(cluster, f"new-{topic}", 1).values()} == {b"x"}
    assert not [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()]


def run_killed(config: Config, topic: str, fate: str) -> None:
    ended = subprocess.run(
        program("dying_transform", config.model_dump_json(), topic, fate),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert ended.returncode == -signal.SIGKILL, ended


def test_killed_while_staging_and_while_restoring_all_is_there_once_and_of_one_piece(
    cluster: Cluster, topic: str, archived: Archived, spark: Any
) -> None:
    config, truth = archived
    run_killed(config, topic, "staging")
    assert f"new-{topic}" not in topics_of(cluster), "not before all is staged"
    assert staged_in(config)
    assert check_archive(open_archive(str(config.archive))).exit_code == 0
    run_killed(config, topic, "restoring")
    begun = [visible(cluster, f"new-{topic}", partition) for partition in range(PARTITIONS)]
    assert any(begun)
    report = restore(config, with_expressions(topic), spark)
    assert report.resumed
    values = set()
    for partition, records in enumerate(truth):
        found = visible(cluster, f"new-{topic}", partition)
        assert begun[partition].items() <= found.items(), "what was there is what it would have become"
        kept = {at: each for at, each in records.items() if is_kept(each)}
        assert {at: each._replace(value=None) for at, each in found.items()} == {
            at: each._replace(value=None) for at, each in kept.items()
        }
        values |= {each.value for each in found.values()}
    assert report.transform is not None
    assert report.transform.topics[0].kept == len(values), "each record went through the expressions once"
    assert report.transform.topics[0].read == sum(map(len, truth))
    assert not staged_in(config)

"""What other verbs leave in an archive means the same in its copy. The command, a scheduler and Spark copy alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.check.signatures import accepted_keys, check_signatures
from maxbrod.cli.main import run
from maxbrod.config import Config, SigningConfig, StorageConfig
from maxbrod.copy.verb import copy_archive
from maxbrod.schedule.jobs import read_jobs
from maxbrod.signature import create_signing_key
from maxbrod.work.work import Work
from support.copies import copy, run_of_topics, three_topics
from support.erasures import erase, holds_bytes, read
from support.keyed_archives import Keyed, batch
from support.native_archives import Making, look, without_spark
from support.native_logs import data_batch
from support.signing_keys import public_half

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.work.session import Session


def test_the_signatures_of_the_source_prove_the_copy_and_that_it_was_not_rolled_back(tmp_path: Path) -> None:
    key, pin = tmp_path / "catalog.key", tmp_path / "pin.json"
    create_signing_key(key)
    making = Making(str(tmp_path / "a"), StorageConfig(signing=SigningConfig(key_file=key)))
    for number in range(4):
        making.run({0: [data_batch(number * 3, 3)]}, packed=False)
        making.run({0: [data_batch(number * 3, 3)]}, topic="other")
        assert copy(tmp_path / "a", tmp_path / "b").exit_code == 0
        report, problems = check_signatures(
            open_archive(str(tmp_path / "b")), accepted_keys((public_half(key),)), pin=pin
        )
        assert problems == []
        assert report.signed_version == making.archive.catalog.version


@pytest.mark.parametrize("options", [{}, {"topics": ["orders"]}], ids=["whole", "chosen"])
def test_whoever_was_erased_at_the_source_leaves_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    without_spark(monkeypatch)
    keyed = Keyed(Making(str(tmp_path / "a")))
    keyed.backup({0: [batch(0, (b"anne-4711", b"1"), (b"ben-0815", b"1"))]}, packed=False)
    copy(tmp_path / "a", tmp_path / "b", **options)
    erase(tmp_path / "a", keys=["anne-4711"])
    assert copy(tmp_path / "a", tmp_path / "b", **options).exit_code == 0
    assert read(tmp_path / "b") == read(tmp_path / "a") == [(1, b"ben-0815", b"1")]
    # A copy that was never told of it before has nothing of her.
    copy(tmp_path / "a", tmp_path / "c", **options)
    assert holds_bytes(tmp_path / "c", b"anne-4711") == []


def test_a_copy_beside_a_backup_is_one_version_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    making = three_topics(tmp_path / "a")
    before = look(tmp_path / "a")

    class Busy:
        parallelism, is_here, in_process = 2, True, True

        def run(self, task: Any, context: Any, tasks: Any, **_: Any) -> list[Any]:
            run_of_topics(making, {"d": 3 * making.runs})
            return [outcome for items in tasks for outcome in task(context, items)]

    report = copy(tmp_path / "a", tmp_path / "b", executor=Busy())
    assert (report.exit_code, report.version) == (0, 3)
    assert look(tmp_path / "b") == before
    copy(tmp_path / "a", tmp_path / "b")
    assert ("d", 0) in look(tmp_path / "b").logs


def test_the_command_prints_its_report_and_ends_with_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three_topics(tmp_path / "a")
    places = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert run(["copy", *places, "--dry-run"]) == 0
    assert "8 objects" in capsys.readouterr().out
    assert run(["copy", *places, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["objects"], report["version"]) == ("complete", 8, 3)
    assert run(["copy", *places]) == 0
    assert "up to date" in capsys.readouterr().out
    assert run(["status", places[0]]) != 2
    assert f"the last one is complete ({places[1]}" in " ".join(capsys.readouterr().out.split())
    assert run(["copy", *places, "--topic", "a"]) == 5
    assert run(["copy", *places, "--storage-class-after", "30d"]) == 2


def test_a_scheduler_can_run_a_copy_and_one_that_follows() -> None:
    options = {"source": "/a", "target": "/b"}
    config = Config.model_validate(
        {
            "jobs": {
                "nightly": {"verb": "copy", "cron": "0 3 * * *", "options": options},
                "always": {"verb": "copy", "options": {**options, "follow": True}},
            }
        }
    )
    assert {job.name: job.follows for job in read_jobs(config)} == {"nightly": False, "always": True}


def test_spark_copies_the_same(spark: Session, tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    config = Config.model_validate({"copies": {"source": str(tmp_path / "a"), "target": str(tmp_path / "b")}})
    with Work(config, session=spark) as work:
        assert copy_archive(work).exit_code == 0
    assert look(tmp_path / "b") == look(tmp_path / "a")

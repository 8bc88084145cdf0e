"""`ls` and `show`: the same answers for people and for machines, in 80 columns and without colour."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.cli.main import run
from maxbrod.layouts.foreign import ClusterFacts, ForeignTopic, Survey, WriteOptions
from maxbrod.layouts.registry import layout_of
from maxbrod.model import TopicPartition
from maxbrod.storage.stores import open_storage
from support.archives import Place, commit_run
from support.catalog_rows import TOPIC_ID, segment
from support.full_archive import OLD_ID, fill
from support.given_records import Given, batch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    def run_and_read(*arguments: str, code: int = 0) -> str:
        assert run(list(arguments)) == code
        return capsys.readouterr().out

    return run_and_read


def test_topics_are_listed_wherever_the_archive_is(place: Place, said: Any) -> None:
    fill(place)
    text = said("ls", *place.arguments)
    assert [line.split()[:3] for line in text.splitlines() if line.startswith(("empty", "orders"))] == [
        ["empty", "2", "0"],
        ["orders", "2", "30"],
    ]
    assert "recovery point: 2023-11-14 22:13:20Z, or later" in text
    assert "1 more were deleted and created again since" in text
    document = json.loads(said("ls", *place.arguments, "--json"))
    assert [each["records"] for each in document["topics"]] == [0, 30, 7]


def test_a_snapshot_that_cannot_be_read_is_named_and_no_recovery_point_is_claimed(
    local_place: Place, said: Any
) -> None:
    fill(local_place).storage.delete(["snapshots/run-2.json.zst"])
    text = " ".join(said("ls", *local_place.arguments).split())
    assert "recovery point: unknown: the snapshot of run run-2 cannot be read" in text
    assert json.loads(said("ls", *local_place.arguments, "--json"))["unreadable_snapshot"] == "run-2"


def test_faults_of_another_tools_archive_by_which_records_are_not_listed_are_counted(tmp_path: Path, said: Any) -> None:
    storage, layout, survey = open_storage(str(tmp_path)), layout_of("kbak"), Survey(layout="kbak", segments=())
    where = TopicPartition(topic="orders", partition=0)
    written = layout.write(storage, where, [batch([Given(offset=3)])], WriteOptions(), survey=survey)
    topics = {"orders": ForeignTopic(name="orders", partition_count=1)}
    layout.publish(storage, survey, written, WriteOptions(), ClusterFacts(topics=topics, taken_at_ms=5))
    assert json.loads(said("ls", "--archive", str(tmp_path), "--json"))["faults"] == 0
    for path in tmp_path.rglob("manifest.json"):
        path.write_text(path.read_text().replace('"start_offset": 3', '"start_offset": 9'))
    assert "damaged: 1 fault, by which records are not listed" in said("ls", "--archive", str(tmp_path))
    assert json.loads(said("ls", "--archive", str(tmp_path), "--json"))["faults"] == 1


def test_every_listing_fits_eighty_columns_and_a_pipe_gets_names_whole(
    local_place: Place, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A console that was made while COLUMNS was set has kept that.
    monkeypatch.setattr("maxbrod.cli.output.out._width", None)
    archive = fill(local_place)
    name = "a-topic-whose-name-is-as-long-as-kafka-lets-it-be." * 4
    big = {"records": 10**12, "raw_bytes": 10**15, "bytes": 900, "max_timestamp": 2**63 - 1, "min_timestamp": -(2**63)}
    commit_run(archive, "run-3", [segment(0, 10**12, topic=name, topic_id="LONG", path="segments/long/1.log", **big)])
    for verb in (["ls", "--all"], ["ls", "--runs"], ["show", "orders", "--all"], ["show", "--run", "run-1"], ["gc"]):
        monkeypatch.setenv("COLUMNS", "80")
        text = said(*verb, *local_place.arguments)
        shown = [line for line in text.splitlines() if str(local_place.folder) not in line]
        assert max(map(len, shown)) <= 80, verb
        monkeypatch.delenv("COLUMNS")
        assert "…" not in said(*verb, *local_place.arguments), verb
    assert name in [line.split(" ")[0] for line in said("ls", *local_place.arguments).splitlines()]


def test_runs_are_listed_with_their_command_and_how_they_ended(local_place: Place, said: Any) -> None:
    fill(local_place)
    runs = [line.split() for line in said("ls", "--runs", *local_place.arguments).splitlines() if "run-" in line]
    seen = [(words[1], words[-1]) for words in runs]
    assert seen == [("backup", "complete"), ("100.0", "committed"), ("backup", "3")]
    assert runs[2][-3:] == ["stopped,", "exit", "3"]
    document = json.loads(said("ls", "--runs", "--json", *local_place.arguments))
    assert [each["run_id"] for each in document] == ["run-0", "run-1", "run-2"]


def test_a_topic_is_shown_wherever_the_archive_is(place: Place, said: Any) -> None:
    fill(place)
    text = said("show", "orders", *place.arguments)
    for line in (
        f"orders (topic id {TOPIC_ID})",
        "partition 0: offsets [0, 30)",
        "  [====================ccccc=====]",
        "  25 records in 3 segments, 2.5 kB stored",
        "  leader epochs 3 to 4",
        "  1 aborted transactions",
        "  compacted: [20, 25), 5 offsets",
        "= data  c compacted",
        "configuration at run-2:",
        "  retention.ms=1000",
    ):
        assert line in text.splitlines()
    assert ["billing", "Empty", "1", "12", "-2", "(ahead)"] in [line.split() for line in text.splitlines()]
    document = json.loads(said("show", "orders", *place.arguments, "--json"))
    assert document["topics"][0]["partitions"][0]["spans"][1] == {
        "first_offset": 20,
        "end_offset": 25,
        "cover": "compacted",
    }


def test_a_topic_is_shown_as_of_a_run_and_in_older_incarnations(local_place: Place, said: Any) -> None:
    fill(local_place)
    assert "partition 0: offsets [0, 20)" in said("show", "orders", "--as-of", "run-1", *local_place.arguments)
    assert "partition 0: offsets [0, 7)" in said("show", "orders", "--topic-id", OLD_ID, *local_place.arguments)
    alone = said("show", "orders", "-p", "1", *local_place.arguments)
    assert "partition 0:" not in alone


def test_a_run_shows_what_it_did(local_place: Place, said: Any) -> None:
    fill(local_place)
    text = said("show", "--run", "latest", *local_place.arguments)
    assert "backup run-2" in text
    assert "5 compacted" in text
    assert json.loads(said("show", "--run", "run-2", "--json", *local_place.arguments))["run"]["exit_code"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show"], "name a topic"),
        (["show", "orders", "--run", "run-1"], "name a topic"),
        (["show", "ordres"], "did you mean orders?"),
        (["show", "orders", "--all", "--topic-id", "x"], "exclude each other"),
        (["show", "orders", "--as-of", "nobody"], "no runs"),
        (["ls", "ordres"], "did you mean orders?"),
        (["gc", "--grace", "soon"], "no length of time"),
        (["gc", "--grace", "30m"], "shorter than a run"),
    ],
)
def test_what_cannot_be_meant_is_bad_usage(
    arguments: list[str], message: str, local_place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(local_place)
    assert run([*arguments, *local_place.arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["ls"], ["show", "orders"], ["gc"], ["check"]])
def test_an_archive_must_be_named_and_be_there(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(verb) == 2
    assert "no archive is named" in capsys.readouterr().err
    assert run([*verb, "--archive", str(tmp_path / "none")]) == 2
    assert "there is no archive" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_the_configuration_names_the_archive_and_flags_win(
    local_place: Place, tmp_path: Path, said: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(local_place)
    file = tmp_path / "maxbrod.yaml"
    file.write_text(f"archive: {local_place.url}\n")
    assert "orders" in said("ls", "--config", str(file))
    assert run(["ls", "--config", str(file), "--archive", str(tmp_path / "none")]) == 2
    # An option of S3 on a folder is refused, not ignored.
    assert run(["ls", "--config", str(file), "--s3-region", "eu-west-1"]) == 2
    assert "options in s3" in capsys.readouterr().err


def test_looking_starts_no_jvm_and_loads_no_spark(local_place: Place) -> None:
    fill(local_place)
    code = (
        "import sys\nfrom maxbrod.cli.main import run\n"
        "codes = [run([*verb, *sys.argv[1:]]) for verb in (['ls'], ['show', 'orders'], ['gc'], ['check'])]\n"
        "sys.exit(bool({'pyspark', 'numba', 'kafka'} & set(sys.modules)) or max(codes))"
    )
    ran = subprocess.run([sys.executable, "-c", code, *local_place.arguments], capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr

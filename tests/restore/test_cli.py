"""`maxbrod restore` as people and programs use it, against a real cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

import pytest
import typer
from rich.console import Console

from maxbrod.archive.snapshot_document import decode as decode_snapshot
from maxbrod.archive.snapshot_document import encode as encode_snapshot
from maxbrod.cli.main import run
from maxbrod.errors import EXIT_CORRUPT, UnavailableError
from maxbrod.option_values import parse_pairs, parse_rate
from maxbrod.restore import target as restore_target
from maxbrod.sandbox.topics import create_topic, delete_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.restores import Command, read_all
from support.sparkless import run_here, without_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@pytest.fixture
def command(cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The archive has a topic of two partitions, with 30 and 10 records."""
    create_topic(cluster, topic, partitions=2)
    produce(cluster, topic, numbered(30))
    produce(cluster, topic, numbered(10), partition=1)
    assert back_up(config_of(cluster, tmp_path / "archive", topic)).complete
    with without_spark():
        yield Command(cluster, tmp_path / "archive", capsys)


def test_a_topic_that_is_gone_comes_back_with_its_offsets(cluster: Cluster, topic: str, command: Command) -> None:
    before = read_all(cluster, topic)
    delete_topic(cluster, topic)
    told = command("restore")
    assert "complete" in told
    assert topic in told
    assert read_all(cluster, topic) == before
    assert offsets(cluster, topic, 1) == (0, 10)


def test_a_dry_run_changes_nothing_and_tells_what_would_run(cluster: Cluster, topic: str, command: Command) -> None:
    told = command("restore", "--dry-run", "--suffix", "-new")
    assert f"{topic}-new" in told.replace("\n", "") or "(new)" in told
    assert "exact" in told
    assert "nothing was changed" in told
    with cluster.admin() as admin:
        assert f"{topic}-new" not in admin.list_topics()

    planned = command.json("restore", "--dry-run", "--suffix", "-new")
    done = command.json("restore", "--suffix", "-new")
    assert (planned["records"], planned["refused"]) == (40, None)
    assert done["restore_id"] == planned["restore_id"]
    assert (done["records"], done["complete"]) == (40, True)


@pytest.mark.parametrize("setting", ["nonsense.key=1", "retention.ms=soon"])
def test_settings_that_the_cluster_refuses_are_found_before_anything_is_made(setting: str, command: Command) -> None:
    refused = ("--suffix", "-new", "--config-set", setting)
    plan = command.json("restore", "--dry-run", *refused, exits=5)
    assert [each["kind"] for each in plan["obstacles"]] == ["configuration"]
    assert setting.partition("=")[0] in plan["obstacles"][0]["what"]
    assert command.json("restore", *refused, exits=5)["error"] == "RefusedError"
    assert command.json("restore", "--suffix", "-new")["complete"]


def test_a_target_that_is_not_empty_is_never_written_to_unasked(cluster: Cluster, topic: str, command: Command) -> None:
    told = command("restore", "--dry-run", exits=5)
    assert "target not empty" in told
    assert "--offsets append" in told, "the hint is told"
    command("restore", "--yes", exits=5)
    assert "not empty" in command.said
    assert offsets(cluster, topic) == (0, 30)


def unwrapped(command: Command) -> str:
    """What was said, without the line ends that a terminal's width makes."""
    return " ".join(command.said.split())


def test_on_a_terminal_nothing_is_changed_before_somebody_agrees(
    cluster: Cluster, topic: str, command: Command
) -> None:
    with patch.object(Console, "is_terminal", True), patch.object(typer, "confirm", return_value=False) as asked:
        told = command("restore", "--suffix", "-new", exits=5)
        assert asked.called
        assert "Plan" in told
        with cluster.admin() as admin:
            assert f"{topic}-new" not in admin.list_topics()
        asked.reset_mock()
        command("restore", "--suffix", "-new", "--yes")
        assert not asked.called


def test_append_goes_behind_what_is_there(cluster: Cluster, topic: str, command: Command) -> None:
    report = command.json("restore", "--offsets", "append", "--partition", "0")
    assert report["records"] == 30
    assert [value for _, value in read_all(cluster, topic)[30:]] == [each.value for each in numbered(30)]
    assert offsets(cluster, topic, 1) == (0, 10), "the other partition was not asked for"


def test_rights_that_nobody_knows_are_told_in_a_dry_run_only(command: Command) -> None:
    with patch.object(restore_target, "look_at_rights", return_value=({}, {})):
        assert "right unknown" in command("restore", "--dry-run", "--suffix", "-new")
        command("restore", "--suffix", "-new")
    assert command.said == "", "nothing is wrong, so nothing is said"


def test_brokers_tell_the_rights_on_topics_also_before_they_are_there(topic: str, command: Command) -> None:
    plan = command.json("restore", "--dry-run", "--offsets", "append", "--topic", topic)
    assert [each["kind"] for each in plan["obstacles"]] == []
    plan = command.json("restore", "--dry-run", "--suffix", "-new")
    assert [each["kind"] for each in plan["obstacles"]] == []


def test_a_refusal_for_machines_names_every_obstacle(command: Command) -> None:
    told = command.json("restore", "--groups", "nobody", exits=2)
    assert (told["error"], told["exit_code"]) == ("UsageError", 2)
    assert {each["kind"] for each in told["obstacles"]} >= {"target not empty", "group missing"}
    assert all(each["what"] for each in told["obstacles"])


def test_the_same_command_goes_on_after_a_failure(cluster: Cluster, topic: str, command: Command) -> None:
    def dying(task: object, settings: object, tasks: list[Any], **_: object) -> list[Any]:
        run_here(task, settings, tasks[:1])
        raise UnavailableError("the lights went out")

    with without_spark(dying):
        command("restore", "--suffix", "-new", exits=1)
    report = command.json("restore", "--suffix", "-new")
    assert (report["resumed"], report["complete"]) == (True, True)
    assert read_all(cluster, f"{topic}-new") == read_all(cluster, topic)
    assert read_all(cluster, f"{topic}-new", 1) == read_all(cluster, topic, 1)


def test_what_the_archive_lacks_is_bad_usage(command: Command) -> None:
    assert "no topic 'nonsense'" in command("restore", "--dry-run", "--topic", "nonsense", exits=2)
    for words in ("--groups", "nobody"), ("--groups", "nobody-*"), ("--topic", "/^top/"), ("--exclude", "tmp-*"):
        command("restore", *words, "--suffix", "-new", exits=2)
        assert words[1] in command.said
    command("restore", "--rename", "/^topic-/zz_/", exits=2)
    assert "renames nothing" in command.said
    assert "whole name" in command.said, "the hint says why"


@pytest.mark.parametrize(
    "words",
    [
        ("--offsets", "roughly"),
        ("--since", "yesterday"),
        ("--range", "orders:0"),
        ("--partition", "5-3"),
        ("--rename", "nothing"),
        ("--config-set", "retention.ms"),
        ("--rate", "fast"),
        ("--rate", "0"),
    ],
)
def test_words_that_mean_nothing_are_bad_usage(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restore", "--archive", "/nowhere", "--bootstrap", "127.0.0.1:1", *words]) == 2
    assert "hint" in capsys.readouterr().err


def test_settings_and_rates_are_read() -> None:
    assert parse_pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    assert parse_rate("50MB") == parse_rate("50MB/s") == 50_000_000
    with pytest.raises(ValueError, match="a has two different values"):
        parse_pairs(["a=1", "a=2"])


@pytest.mark.parametrize("answer", [typer.Abort, KeyboardInterrupt, EOFError, False])
def test_whoever_does_not_agree_ends_it_with_5_and_nothing_is_changed(
    cluster: Cluster, topic: str, command: Command, answer: type[BaseException] | bool
) -> None:
    effect = {"return_value": False} if answer is False else {"side_effect": answer}
    with patch.object(Console, "is_terminal", True), patch.object(typer, "confirm", **effect):
        command("restore", "--suffix", "-new", exits=5)
    assert "not confirmed" in unwrapped(command)
    with cluster.admin() as admin:
        assert f"{topic}-new" not in admin.list_topics()


def test_again_restores_once_more_and_never_doubles_records_unasked(
    cluster: Cluster, topic: str, command: Command
) -> None:
    words = ("restore", "--suffix", "-new", "--partition", "0")
    new = f"{topic}-new"
    assert command.json(*words)["complete"]
    assert "--again" in command.json(*words, exits=5)["hint"]
    command(*words, "--again", exits=5)
    assert "not empty" in command.said
    assert offsets(cluster, new) == (0, 30)
    appended = (*words, "--offsets", "append")
    assert command.json(*appended)["records"] == 30
    command(*appended, exits=5)
    assert command.json(*appended, "--again")["records"] == 30
    assert offsets(cluster, new) == (0, 90), "behind what is there, because that was asked for"
    # Emptied, it takes them once more.
    delete_topic(cluster, new)
    report = command.json(*words, "--again")
    assert (report["complete"], report["resumed"]) == (True, False)
    assert read_all(cluster, new) == read_all(cluster, topic)


def test_what_was_agreed_to_is_what_runs(cluster: Cluster, topic: str, command: Command) -> None:
    """While the prompt waits, somebody else does the same, or something to the target."""
    words = ("restore", "--suffix", "-new")
    new = f"{topic}-new"

    def meanwhile(act: Callable[[], object]) -> None:
        def agree(*_: object, **__: object) -> bool:
            act()
            return True

        with patch.object(Console, "is_terminal", True), patch.object(typer, "confirm", agree):
            command(*words, exits=5)

    meanwhile(lambda: create_topic(cluster, new, partitions=2))
    assert f"{new} was created or deleted" in unwrapped(command)
    assert offsets(cluster, new) == (0, 0)
    delete_topic(cluster, new)

    def begin() -> None:
        with without_spark(Mock(side_effect=UnavailableError("the lights went out"))):
            assert run([*words, "--yes", *command.place]) == 1

    meanwhile(begin)
    assert "begun elsewhere" in unwrapped(command)
    assert offsets(cluster, new) == (0, 0)
    meanwhile(lambda: run([*words, "--yes", *command.place]))
    assert "already" in unwrapped(command)
    assert read_all(cluster, new) == read_all(cluster, topic)


@pytest.mark.usefixtures("spark")
def test_a_restore_on_spark_is_complete(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, partitions=2)
    produce(cluster, topic, numbered(50), partition=1)
    back_up(config_of(cluster, tmp_path, topic))
    report = Command(cluster, tmp_path, capsys).json("restore", "--prefix", "again-")
    assert (report["records"], report["complete"]) == (50, True)
    assert read_all(cluster, f"again-{topic}", 1) == read_all(cluster, topic, 1)


@pytest.mark.parametrize("harm", ["gone", "damaged", "hostile"])
def test_a_snapshot_that_cannot_be_read_is_found_before_anything_is_made(
    harm: str, cluster: Cluster, topic: str, command: Command, tmp_path: Path
) -> None:
    """Without it the topic would get the target's defaults, and its groups would be missed when all is written."""
    (path,) = (tmp_path / "archive" / "snapshots").iterdir()
    if harm == "gone":
        path.unlink()
    elif harm == "damaged":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        found = decode_snapshot(path.read_bytes())
        path.write_bytes(encode_snapshot(replace(found, cluster={**found.cluster, "topics": [{"name": 5}]})))
    for words in (["--dry-run"], ["--yes"]):
        command("restore", "--suffix", "-new", *words, exits=EXIT_CORRUPT)
        assert "--accept-gaps" in command.said
    with cluster.admin() as admin:
        assert f"{topic}-new" not in admin.list_topics()

    told = command("restore", "--suffix", "-new", "--accept-gaps", "--yes")
    assert "incomplete: restored" in told
    assert "snapshot cannot be read" in told
    assert len(read_all(cluster, f"{topic}-new")) == 30

"""An archive against the topics of a real cluster: equal is said only of what is, and differences are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

import maxbrod
from maxbrod.archive.archive import open_archive
from maxbrod.errors import UsageError
from maxbrod.inspect.topic import show_topic
from maxbrod.sandbox.surgery import compact, delete_records
from maxbrod.sandbox.topics import create_topic, delete_topic, offsets
from maxbrod.sandbox.traffic import Message, numbered, open_transaction, produce, produce_transaction
from maxbrod.table.read.counts import count_records
from maxbrod.table.read.options import parse_options
from support.archives import damage
from support.backups import back_up, config_of
from support.ledger import NOW_MS as LEDGER_NOW_MS
from support.ledger import Ledger
from support.restores import Command
from support.sparkless import without_spark
from support.sparkless import without_spark as restoring_without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

KEEP = {"retention.ms": "-1"}
NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with without_spark(), restoring_without_spark():
        yield


def test_a_rule_that_renames_nothing_never_compares_topics_with_themselves(command: Command, topic: str) -> None:
    for words in ("--rename", "/^topic-/zz_/"), ("--topic", "/^topic-/"), ("--exclude", "tmp-*"), ("--partition", "7"):
        told = command("compare", *words, exits=2)
        assert "equal" not in told
        assert words[1] in command.said
    assert command.json("compare", "--topic", topic, "--rename", f"/{topic}(.*)/{topic}\\1/")["equal"]


@pytest.fixture
def command(cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """The archive has a topic of two partitions: every codec, odd records, transactions of either end."""
    create_topic(cluster, topic, partitions=2, config=KEEP)
    Ledger().write(cluster, topic, 300)
    produce_transaction(cluster, topic, numbered(5), transactional_id=f"good-{topic}")
    produce_transaction(cluster, topic, numbered(7), transactional_id=f"bad-{topic}", commit=False)
    Ledger().write(cluster, topic, 100)
    produce(cluster, topic, numbered(40), partition=1)
    assert back_up(config_of(cluster, tmp_path / "archive", topic)).complete
    return Command(cluster, tmp_path / "archive", capsys)


def test_an_archive_equals_the_topic_that_it_was_made_from(topic: str, command: Command) -> None:
    report = command.json("compare")
    assert report["equal"]
    assert [(each["partition"], each["match"], each["source_records"]) for each in report["partitions"]] == [
        (0, "exact", 405),
        (1, "exact", 40),
    ]
    assert report["source_records"] == report["target_records"] == 445
    told = command("compare")
    assert "equal: 445 records" in told
    assert f"{topic}-0" in told


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_a_restored_topic_equals_the_archive(topic: str, command: Command, mode: str) -> None:
    command("restore", "--suffix", "-new", "--offsets", mode)
    report = command.json("compare", "--suffix", "-new")
    assert report["equal"], report["differences"]
    assert {each["match"] for each in report["partitions"]} == {"exact" if mode == "exact" else "mapped"}


def test_records_appended_behind_others_are_compared_with_those_that_they_were(
    cluster: Cluster, topic: str, command: Command
) -> None:
    create_topic(cluster, f"{topic}-new", partitions=2, config=KEEP)
    produce(cluster, f"{topic}-new", numbered(9))
    restored = command.json("restore", "--suffix", "-new", "--offsets", "append")
    produce(cluster, f"{topic}-new", numbered(3))
    report = command.json("compare", "--suffix", "-new")
    assert report["equal"], report["differences"]
    assert "3 offsets" in report["partitions"][0]["notes"][-1], "what came later is told"
    assert command.json("compare", "--restore", restored["restore_id"])["equal"]
    assert not command.json("compare", "--suffix", "-new", "--offsets", "exact", exits=3)["equal"]


def test_a_cut_restore_equals_what_was_asked_for(topic: str, command: Command) -> None:
    command("restore", "--suffix", "-cut", "--range", f"{topic}:0:10..200", "--until", str(LEDGER_NOW_MS - 10**10))
    report = command.json("compare", "--suffix", "-cut")
    assert report["equal"], report["differences"]
    assert 0 < report["source_records"] < 190


PLANTED = {
    "key": lambda each: each._replace(key=b"other"),
    "value": lambda each: each._replace(value=None),
    "headers": lambda each: each._replace(headers=(*each.headers, ("h", b""))),
    "timestamp": lambda each: each._replace(timestamp_ms=each.timestamp_ms + 1),
}


@pytest.mark.parametrize("field", PLANTED)
def test_a_planted_difference_is_found_at_its_offset(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    made = [each._replace(timestamp_ms=NOW_MS + n) for n, each in enumerate(numbered(200))]
    planted = [PLANTED[field](each) if number == 123 else each for number, each in enumerate(made)]
    for name, messages in ((topic, made), (f"{topic}-new", planted)):
        create_topic(cluster, name, config=KEEP)
        produce(cluster, name, messages)
    assert back_up(config_of(cluster, tmp_path, topic)).complete
    command = Command(cluster, tmp_path, capsys)
    report = command.json("compare", "--suffix", "-new", exits=3)
    (found,) = report["differences"]
    assert (found["source_offset"], found["target_offset"], found["field"]) == (123, 123, field)
    assert found["source"] != found["target"]
    told = command("compare", "--suffix", "-new", exits=3)
    assert f"{topic}-0 offset 123 / {topic}-new-0 offset 123: {field}" in told
    assert "not equal: 1 of 1" in told
    assert command.json("compare", "--suffix", "-new", "--ignore", field)["equal"]


def test_a_difference_in_one_part_of_many_is_found_and_only_there(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [each._replace(timestamp_ms=NOW_MS) for each in numbered(1000)]
    create_topic(cluster, topic, config=KEEP)
    create_topic(cluster, f"{topic}-new", config=KEEP)
    for turn in range(10):
        produce(cluster, topic, made[turn * 100 : turn * 100 + 100])
    planted = [*made[:333], *made[334:700], Message(key=b"new", value=b"", timestamp_ms=NOW_MS), *made[700:]]
    produce(cluster, f"{topic}-new", planted)
    assert back_up(config_of(cluster, tmp_path, topic, segment_records=100)).complete
    command = Command(cluster, tmp_path, capsys)
    with patch("maxbrod.compare.archived.PART_BYTES", 1):
        assert command.json("compare")["equal"]
        exact = command.json("compare", "--suffix", "-new", "--differences", "1000", exits=3)
        assert [exact["differences"][at]["source_offset"] for at in (0, -1)] == [333, 699]
        order = command.json("compare", "--suffix", "-new", "--offsets", "append", "--differences", "1", exits=3)
    assert [(each["source_offset"], each["target_offset"]) for each in order["differences"]] == [(333, 333)]


def test_records_that_are_missing_or_too_many_are_named(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [each._replace(timestamp_ms=NOW_MS) for each in numbered(20)]
    for name, messages in ((topic, made), (f"{topic}-few", made[:18]), (f"{topic}-many", [*made, *made[:1]])):
        create_topic(cluster, name, config=KEEP)
        produce(cluster, name, messages)
    assert back_up(config_of(cluster, tmp_path, topic)).complete
    command = Command(cluster, tmp_path, capsys)
    few = command.json("compare", "--suffix", "-few", exits=3)
    assert [(each["field"], each["source_offset"], each["target"]) for each in few["differences"]] == [
        ("record", 18, "no record"),
        ("record", 19, "no record"),
    ]
    many = command.json("compare", "--suffix", "-many", "--offsets", "append", exits=3)
    assert [(each["target_offset"], each["source"]) for each in many["differences"]] == [(20, "no record")]
    assert (many["source_records"], many["target_records"]) == (20, 21)
    none = command.json("compare", "--suffix", "-none", exits=3)
    assert "there is no" in none["partitions"][0]["notes"][0]


def test_aborted_and_undecided_records_are_no_records(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, config=KEEP)
    made = [each._replace(timestamp_ms=NOW_MS) for each in numbered(10)]
    produce(cluster, topic, made)
    assert back_up(config_of(cluster, tmp_path, topic)).complete
    create_topic(cluster, f"{topic}-new", config=KEEP)
    produce_transaction(cluster, f"{topic}-new", numbered(3), transactional_id=f"bad-{topic}", commit=False)
    produce(cluster, f"{topic}-new", made)
    command = Command(cluster, tmp_path, capsys)
    with open_transaction(cluster, f"{topic}-new", numbered(2), transactional_id=f"open-{topic}"):
        report = command.json("compare", "--suffix", "-new", "--offsets", "append")
    assert (report["target_records"], report["equal"]) == (10, True)
    assert "not decided" in report["partitions"][0]["notes"][0]


def test_what_compaction_and_retention_have_left_equals_its_archive(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, config={"cleanup.policy": "compact"})
    for _ in range(5):
        produce(cluster, topic, numbered(20, keys=7))
    compact(cluster, topic)
    create_topic(cluster, f"{topic}-late", config=KEEP)
    for _ in range(4):
        produce(cluster, f"{topic}-late", numbered(300))
    delete_records(cluster, f"{topic}-late", before_offset=700)
    assert back_up(config_of(cluster, tmp_path, topic, f"{topic}-late")).complete
    command = Command(cluster, tmp_path, capsys)
    assert command.json("compare")["equal"]
    for mode in ("exact", "append"):
        command("restore", "--suffix", f"-{mode}", "--offsets", mode)
        report = command.json("compare", "--suffix", f"-{mode}")
        assert report["equal"], report["differences"]


def test_what_was_deleted_within_a_batch_does_not_come_back(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = {0: 777, 1: 1499}
    create_topic(cluster, topic, partitions=2, config=KEEP)
    for partition, start in starts.items():
        produce(cluster, topic, numbered(3000), partition=partition, batch_size=900_000)
        delete_records(cluster, topic, partition=partition, before_offset=start)
    assert back_up(config_of(cluster, tmp_path, topic)).complete
    assert [each.records for each in count_records(parse_options({"path": str(tmp_path)})) or ()] == [2223, 1501]
    command = Command(cluster, tmp_path, capsys)
    shown = show_topic(open_archive(str(tmp_path)), topic).topics[0].partitions
    assert [(each.first_offset, each.log_start) for each in shown] == [(777, 777), (1499, 1499)]
    assert command.json("compare")["equal"]
    for mode in ("exact", "append"):
        command("restore", "--suffix", f"-{mode}", "--offsets", mode)
        assert command.json("compare", "--suffix", f"-{mode}")["source_records"] == 2223 + 1501
        assert command.json("compare", "--suffix", f"-{mode}")["equal"]
        kept = mode == "exact"
        assert [offsets(cluster, f"{topic}-{mode}", each) for each in starts] == [
            (777, 3000) if kept else (0, 2223),
            (1499, 3000) if kept else (0, 1501),
        ]
    both = maxbrod.compare(bootstrap=cluster.bootstrap, source=cluster.bootstrap, topics=[topic], suffix="-exact")
    assert both.equal
    assert [(each.source_log_start, each.target_log_start) for each in both.partitions] == [(777, 777), (1499, 1499)]


def test_log_append_times_are_restored_as_create_times_and_count_as_equal(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, config={"message.timestamp.type": "LogAppendTime"})
    produce(cluster, topic, numbered(20))
    assert back_up(config_of(cluster, tmp_path, topic)).complete
    command = Command(cluster, tmp_path, capsys)
    command("restore", "--suffix", "-new")
    assert command.json("compare", "--suffix", "-new")["equal"]
    exact = command.json("compare", "--suffix", "-new", "--offsets", "exact")
    assert exact["equal"]
    told = "20 records of the source and 0 of the target have log append time: the type of timestamps is not compared"
    assert exact["partitions"][0]["notes"][0].startswith(told)
    assert told in command("compare", "--suffix", "-new")


def test_what_a_cleaner_removed_after_the_backup_is_no_difference(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, config={"cleanup.policy": "compact"})
    produce(cluster, topic, numbered(40, keys=7))
    assert back_up(config_of(cluster, tmp_path, topic)).complete
    command = Command(cluster, tmp_path, capsys)
    command("restore", "--suffix", "-new")
    compact(cluster, f"{topic}-new")
    report = command.json("compare", "--suffix", "-new")
    (found,) = report["partitions"]
    assert (report["equal"], found["source_removed"], found["target_removed"]) == (True, 0, 33)
    assert "equal" in (told := command("compare", "--suffix", "-new"))
    assert "compaction removed 0 records of the source and 33 records of the target" in told
    both = maxbrod.compare(bootstrap=cluster.bootstrap, source=cluster.bootstrap, topics=[topic], suffix="-new")
    assert not both.equal, "the record that made the segment roll"
    assert [each.target_offset for each in both.differences] == [40]


def test_another_number_of_partitions_is_compared_as_a_set(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [each._replace(timestamp_ms=NOW_MS) for each in numbered(60)]
    create_topic(cluster, topic, partitions=2, config=KEEP)
    create_topic(cluster, f"{topic}-new", partitions=3, config=KEEP)
    for number in range(2):
        produce(cluster, topic, made[number::2], partition=number)
    for number in range(3):
        produce(cluster, f"{topic}-new", made[number::3], partition=number)
    assert back_up(config_of(cluster, tmp_path, topic)).complete
    command = Command(cluster, tmp_path, capsys)
    report = command.json("compare", "--suffix", "-new")
    assert report["equal"]
    assert [(each["match"], each["partition"], each["target_records"]) for each in report["partitions"]] == [
        ("set", -1, 60)
    ]
    command("compare", "--suffix", "-new", "--offsets", "exact", exits=2)
    produce(cluster, f"{topic}-new", made[:1])
    assert not command.json("compare", "--suffix", "-new", exits=3)["equal"]


def test_a_damaged_object_is_never_called_equal(cluster: Cluster, topic: str, tmp_path: Path, command: Command) -> None:
    for pack in (tmp_path / "archive" / "packs").iterdir():
        damage(pack)
    report = command.json("compare", exits=4)
    assert not report["equal"]
    assert any(each["failure"] for each in report["partitions"])
    assert "not compared" in command("compare", exits=4)


def test_python_programs_compare_too(cluster: Cluster, topic: str, tmp_path: Path, command: Command) -> None:
    report = maxbrod.compare(bootstrap=cluster.bootstrap, archive=tmp_path / "archive", topics=[topic])
    assert report.equal
    with pytest.raises(UsageError, match="compared with itself"):
        maxbrod.compare(bootstrap=cluster.bootstrap, source=cluster.bootstrap, topics=[topic])


def test_two_live_topics_are_compared(cluster: Cluster, topic: str, tmp_path: Path, command: Command) -> None:
    command("restore", "--suffix", "-new")
    reached: dict[str, Any] = {
        "bootstrap": cluster.bootstrap,
        "source": cluster.bootstrap,
        "topics": [topic],
        "suffix": "-new",
    }
    assert maxbrod.compare(**reached).equal
    produce(cluster, f"{topic}-new", numbered(1), partition=1)
    report = maxbrod.compare(**reached)
    assert (report.exit_code, [each.target_offset for each in report.differences]) == (3, [40])
    assert maxbrod.compare(**reached, partitions=frozenset({0})).equal


@pytest.mark.parametrize(
    "words",
    [
        ("--offsets", "roughly"),
        ("--offsets", "mapped"),
        ("--ignore", "colour"),
        ("--ignore", "key,value,headers,timestamp,timestamp-type"),
        ("--source", "127.0.0.1:1"),
        ("--restore", "x", "--since", "0"),
    ],
)
def test_words_that_mean_nothing_are_bad_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    from maxbrod.cli.main import run  # noqa: PLC0415 - the other tests go through `Command`

    assert run(["compare", "--archive", "/nowhere", "--bootstrap", "127.0.0.1:1", *words]) == 2
    assert "hint" in capsys.readouterr().err


def test_a_recreated_topic_is_not_taken_for_the_restored_one(cluster: Cluster, topic: str, command: Command) -> None:
    command("restore", "--suffix", "-new", "--offsets", "append")
    delete_topic(cluster, f"{topic}-new")
    create_topic(cluster, f"{topic}-new", partitions=2)
    report = command.json("compare", "--suffix", "-new", exits=3)
    assert {each["match"] for each in report["partitions"]} == {"exact"}

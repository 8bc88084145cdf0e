"""Erasure from the archive of a real topic: restores, queries, comparisons and backups leave the person out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive, open_for_writing
from maxbrod.archive.holds import add_hold, release_hold
from maxbrod.catalog.generations import GenerationStage
from maxbrod.cli.main import run
from maxbrod.model import GapReason
from maxbrod.sandbox.surgery import delete_records
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import Message, produce, produce_transaction
from support.backups import back_up, config_of
from support.erasures import erase, holds_bytes, read
from support.native_archives import segments
from support.restores import Command, read_all
from support.sparkless import without_spark
from support.topics import COMPACTED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with without_spark():
        yield


def without(records: list[tuple[int, bytes]], *people: bytes) -> list[tuple[int, bytes]]:
    return [record for record in records if not record[1].startswith(people)]


def test_a_person_leaves_the_archive_of_a_real_topic_and_no_verb_brings_them_back(
    cluster: Cluster, topic: str, tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    archive, command = tmp_path / "archive", Command(cluster, tmp_path / "archive", capsys)
    config = config_of(cluster, archive, topic)
    people = [b"anne", b"ben", b"carl", b"dora"]
    for turn in range(3):
        produce(cluster, topic, [Message(key=who, value=who + b"-%d" % turn) for who in people])
    produce_transaction(
        cluster, topic, [Message(key=who, value=who + b"-t") for who in people], transactional_id=topic, commit=True
    )
    back_up(config)
    everything = read_all(cluster, topic)

    # Rewritten: by a key on the command line, and by a condition on Spark.
    assert run(["erase", "-a", str(archive), "--topic", topic, "--key", "anne", "--quiet"]) == 0
    report = erase(archive, topics=[topic], where="cast(value as string) like 'ben%'", session=spark)
    assert (report.exit_code, report.records, report.found_again) == (0, 4, 0)
    # Held: the bytes stay, and only the ledger keeps readers away.
    hold = add_hold(open_for_writing(str(archive)), who="law", why="a case")
    assert erase(archive, topics=[topic], keys=["carl"]).suppressed == 4

    for mode in ("exact", "append"):
        command("restore", "--suffix", f"-{mode}", "--offsets", mode)
        found = read_all(cluster, f"{topic}-{mode}")
        assert [value for _, value in found] == [value for _, value in without(everything, b"anne", b"ben", b"carl")]
        if mode == "exact":
            assert found == without(everything, b"anne", b"ben", b"carl")
    # The source still has all of it: what was erased is left out of both sides.
    command("compare", "--topic", topic)
    command("compare", "--topic", topic, "--suffix", "-exact")
    assert run(["query", str(archive), f"SELECT count(*), count(DISTINCT key) FROM `{topic}`", "--output", "csv"]) == 0
    assert capsys.readouterr().out.split()[-1] == "4,1"
    assert run(["check", "-a", str(archive), "--deep"]) == 0
    capsys.readouterr()

    # Deleted at the source within a batch, and then from the archive.
    produce(cluster, topic, [Message(key=b"dora", value=b"dora-%d" % turn) for turn in range(4, 8)])
    back_up(config)
    last = read_all(cluster, topic)[-1][0]
    delete_records(cluster, topic, before_offset=last - 1)
    produce(cluster, topic, [Message(key=b"dora", value=b"dora-8")])
    back_up(config)
    release_hold(open_for_writing(str(archive)), hold.id, who="law", why="over")
    report = erase(archive, topics=[topic], below_log_start=True)
    assert (report.exit_code, report.records) == (0, len(everything) - 8 + 2)
    command("restore", "--suffix", "-after", "--offsets", "exact")
    assert read_all(cluster, f"{topic}-after") == read_all(cluster, topic)


def test_a_backup_that_reads_the_source_again_does_not_archive_the_person_again(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, command = tmp_path / "archive", Command(cluster, tmp_path / "archive", capsys)
    keyed, plain = f"{topic}-keyed", f"{topic}-plain"
    create_topic(cluster, keyed, config=COMPACTED)
    create_topic(cluster, plain)
    for name in (keyed, plain):
        produce(cluster, name, [Message(key=who, value=who + b"-4711") for who in (b"anne", b"ben", b"carl")])
    config = config_of(cluster, archive, keyed, plain)
    back_up(config)
    assert erase(archive, topics=[keyed, plain], keys=["anne"]).records == 2
    # A lost object, which a repair reads again from the source, and a new generation of the compacted topic.
    lost = next(row for row in segments(archive) if row.topic == plain)
    (archive / lost.path).unlink()
    command("repair", "--apply")
    for _ in range(2):
        report = back_up(config_of(cluster, archive, keyed, plain, generation_every="1ms"))
        assert report.exit_code == 0, report.notices
    assert any(
        generation.stage is GenerationStage.ACTIVE and generation.number > 1
        for known in open_archive(str(archive)).catalog.generations().values()
        for generation in known.generations
    )
    for name in (keyed, plain):
        assert [found[1] for found in read(archive, topic=name)] == [b"ben", b"carl"]
    reasons = {row.topic: row.reason for row in segments(archive)}
    assert reasons == dict.fromkeys((keyed, plain), GapReason.ERASED)
    assert holds_bytes(archive, b"anne-4711") == []

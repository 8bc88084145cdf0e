"""Objects of the archive are missing, cut or damaged: the report names them, and other partitions are complete."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

import pytest

from maxbrod.backup import run as backup
from maxbrod.backup.plan.ranges import plan_tasks
from maxbrod.cli.main import run
from maxbrod.errors import EXIT_CORRUPT, CorruptDataError
from maxbrod.sandbox.topics import offsets
from support.restore_faults import CrashError, archive, failure_of, renamed, restore, when_acknowledged
from support.restore_oracle import assert_restored, log_of
from support.restores import Command, configs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster
    from support.plain_log import Record


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


class Archived(NamedTuple):
    """A topic of two partitions, of which one object is about to be damaged."""

    config: Config
    wanted: list[dict[int, Record]]
    victim: Path
    first: int
    end: int
    """The offsets that the object holds."""


@pytest.fixture
def archived(cluster: Cluster, topic: str, tmp_path: Path) -> Archived:
    with patch.object(
        backup, "plan_tasks", partial(plan_tasks, pack_bytes_max=1)
    ):  # each partition has its own objects
        config, wanted = archive(cluster, topic, tmp_path / "archive", partitions=2, segment_records=60)
    (folder,) = (tmp_path / "archive" / "segments" / topic).iterdir()
    objects = sorted((folder / "0").iterdir())
    return Archived(config, wanted, objects[1], int(objects[1].name[:20]), int(objects[2].name[:20]))


def is_restored(cluster: Cluster, topic: str, archived: Archived, gap: tuple[int, int], mode: str) -> None:
    """Everything but the gap, at its own offsets where they stay."""
    base = None if mode == "exact" else 0
    left = {at: each for at, each in archived.wanted[0].items() if not gap[0] <= at < gap[1]}
    assert len(left) < len(archived.wanted[0])
    assert_restored(cluster, f"new-{topic}", left, base=base)
    assert_restored(cluster, f"new-{topic}", archived.wanted[1], partition=1, base=base)
    assert configs_of(cluster, f"new-{topic}") == configs_of(cluster, topic), "nothing is held any more"


@pytest.mark.parametrize("damage", [Path.unlink, cut], ids=["missing", "cut"])
@pytest.mark.parametrize("mode", ["exact", "append"])
def test_an_object_that_is_missing_or_too_short_is_found_before_anything_is_changed(
    cluster: Cluster, topic: str, archived: Archived, mode: str, damage: Callable[[Path], None]
) -> None:
    damage(archived.victim)
    with pytest.raises(CorruptDataError) as caught:
        restore(archived.config, renamed(mode))
    told = str(caught.value)
    assert archived.victim.name in told
    assert f"to {archived.end} cannot be read" in told
    assert caught.value.object_name == f"{topic}-0"
    with cluster.admin() as admin:
        assert f"new-{topic}" not in admin.list_topics()
    report = restore(archived.config, renamed(mode, accept_gaps=True))
    assert (report.exit_code, report.complete) == (0, False), "it was accepted, and is not complete"
    (lost,) = report.accepted_gaps
    assert archived.victim.name in lost
    first = int(lost.partition("offsets ")[2].split()[0])
    assert archived.first <= first < archived.end
    assert first == archived.first or damage is cut, "what the object still has is restored"
    is_restored(cluster, topic, archived, (first, archived.end), mode)


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_damage_that_only_reading_finds_ends_with_4_and_the_same_command_completes_once_it_is_accepted(
    cluster: Cluster, topic: str, archived: Archived, mode: str
) -> None:
    flip(archived.victim)
    report = restore(archived.config, renamed(mode))
    assert (report.exit_code, report.complete) == (EXIT_CORRUPT, False)
    failure = failure_of(report.partitions[0])
    assert archived.victim.name in failure["object_name"]
    assert f"offsets {failure['offset']} to {archived.end} cannot be read" in failure["message"]
    assert report.partitions[1].failure is None
    # Half done, with temporary settings on its topics: the same command resumes without what is lost.
    report = restore(archived.config, renamed(mode, accept_gaps=True))
    assert (report.exit_code, report.complete, report.resumed) == (0, False, True)
    (lost,) = report.accepted_gaps
    assert f"offsets {failure['offset']} to {archived.end} cannot be read" in lost
    assert archived.victim.name in lost
    assert failure["offset"] > archived.first, "what stands before the damage is restored"
    is_restored(cluster, topic, archived, (failure["offset"], archived.end), mode)


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_accepted_damage_is_left_out_at_once_and_the_report_counts_every_record(
    cluster: Cluster, topic: str, archived: Archived, mode: str
) -> None:
    flip(archived.victim)
    report = restore(archived.config, renamed(mode, accept_gaps=True))
    assert (report.exit_code, report.complete, report.resumed) == (0, False, False)
    first = int(report.accepted_gaps[0].partition("offsets ")[2].split()[0])
    is_restored(cluster, topic, archived, (first, archived.end), mode)
    there = log_of(cluster, f"new-{topic}")
    assert report.partitions[0].records == len(there)


@pytest.mark.parametrize("acknowledged", [1, 8], ids=["before it", "within it"])
def test_an_object_that_goes_while_a_restore_is_interrupted_is_found_and_can_be_accepted(
    cluster: Cluster, topic: str, archived: Archived, acknowledged: int
) -> None:
    with when_acknowledged(acknowledged, lambda: (_ for _ in ()).throw(CrashError)), pytest.raises(CrashError):
        restore(archived.config, renamed())
    archived.victim.unlink()
    with pytest.raises(CorruptDataError, match=f"offsets {archived.first} to {archived.end}"):
        restore(archived.config, renamed())
    report = restore(archived.config, renamed(accept_gaps=True))
    assert (report.exit_code, report.complete, report.resumed) == (0, False, True)
    there, wanted = log_of(cluster, f"new-{topic}"), archived.wanted[0]
    # What an earlier attempt has restored of it stays.
    assert wanted.keys() - there.keys() <= set(range(archived.first, archived.end))
    assert all(wanted[at] == each for at, each in there.items())
    assert log_of(cluster, f"new-{topic}", 1) == archived.wanted[1]
    assert configs_of(cluster, f"new-{topic}") == configs_of(cluster, topic), "nothing is held any more"


@pytest.mark.parametrize("damage", [Path.unlink, flip], ids=["missing", "flipped"])
def test_another_number_of_partitions_goes_without_what_is_lost(
    cluster: Cluster, topic: str, archived: Archived, damage: Callable[[Path], None]
) -> None:
    damage(archived.victim)
    request = renamed("auto", partition_count=3)
    if damage is flip:
        assert restore(archived.config, request).exit_code == EXIT_CORRUPT
    else:
        with pytest.raises(CorruptDataError, match=archived.victim.name):
            restore(archived.config, request)
    report = restore(archived.config, replace(request, accept_gaps=True))
    assert (report.exit_code, report.complete) == (0, False)
    first = int(report.accepted_gaps[0].partition("offsets ")[2].split()[0])
    left = [each for at, each in archived.wanted[0].items() if not first <= at < archived.end]
    there = [each for number in range(3) for each in log_of(cluster, f"new-{topic}", number).values()]
    assert Counter(each.value for each in there) == Counter(
        each.value for each in (*left, *archived.wanted[1].values())
    )


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_damage_in_the_archive_costs_no_other_partition_and_mended_the_same_command_goes_on(
    cluster: Cluster, topic: str, archived: Archived, mode: str
) -> None:
    config, wanted, victim, first_offset, _ = archived
    base = None if mode == "exact" else 0
    sound = victim.read_bytes()
    flip(victim)
    report = restore(config, renamed(mode))
    assert report.exit_code == EXIT_CORRUPT
    broken, whole = report.partitions
    failure = failure_of(broken)
    assert victim.name in failure["object_name"]
    assert failure["offset"] >= first_offset
    # What comes before the damage is restored, and the report says so.
    before = {at: each for at, each in wanted[0].items() if at < first_offset}
    there = log_of(cluster, f"new-{topic}")
    assert list(there.values())[: len(before)] == list(before.values())
    assert list(there.values()) == list(wanted[0].values())[: len(there)]
    assert (broken.end, broken.records) == (offsets(cluster, f"new-{topic}")[1], len(there))
    assert (whole.failure, whole.records) == (None, len(wanted[1]))
    assert_restored(cluster, f"new-{topic}", wanted[1], partition=1, base=base)
    held = configs_of(cluster, f"new-{topic}")
    assert held != configs_of(cluster, topic), "nothing may delete what is there before all is"
    # Once it is repaired, the same command resumes.
    victim.write_bytes(sound)
    assert restore(config, renamed(mode)).exit_code == 0
    for partition, records in enumerate(wanted):
        assert_restored(cluster, f"new-{topic}", records, partition=partition, base=base)
    assert configs_of(cluster, f"new-{topic}") == configs_of(cluster, topic)


@pytest.mark.usefixtures("spark")
def test_no_verb_calls_an_archive_whole_of_which_an_object_is_lost(
    cluster: Cluster, topic: str, archived: Archived, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On Spark: each names the object and the offsets."""
    place = str(archived.config.archive)
    command = Command(cluster, place, capsys)
    flip(archived.victim)
    report = command.json("restore", "--prefix", "new-", "--accept-gaps")
    assert (report["complete"], report["exit_code"], len(report["accepted_gaps"])) == (False, 0, 1)
    first = int(report["accepted_gaps"][0].partition("offsets ")[2].split()[0])
    is_restored(cluster, topic, archived, (first, archived.end), "exact")
    # Through expressions too: nothing is staged of what cannot be read.
    masked = command.json("restore", "--prefix", "masked-", "--where", "offset >= 0", "--accept-gaps")
    assert (masked["complete"], masked["exit_code"]) == (False, 0)
    assert masked["accepted_gaps"] == report["accepted_gaps"]
    there = [set(log_of(cluster, f"{prefix}-{topic}")) for prefix in ("new", "masked")]
    assert there[0] == there[1]
    archived.victim.unlink()
    lost = f"offsets {archived.first} to {archived.end} cannot be read: the object is not there"

    def told(*words: str, exits: int) -> str:
        assert run(list(words)) == exits
        said = capsys.readouterr()
        return "".join((said.out + said.err).split("\n"))

    said = told("compare", "--archive", place, "--bootstrap", cluster.bootstrap, "--prefix", "new-", exits=4)
    assert (lost in said, archived.victim.name in said, "equal:" in said) == (True, True, False)
    said = told("query", place, f"SELECT max(length(value)) FROM `{topic}`", exits=4)
    assert (lost in said, archived.victim.name in said) == (True, True)
    said = told("convert", place, str(tmp_path / "other"), "--to", "kbak", "--accept-loss", exits=4)
    assert (lost in said, archived.victim.name in said) == (True, True)

"""Objects of the archive are missing, cut or damaged: it is told which and where, and other partitions are whole."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from maxbrod.api import backup
from maxbrod.errors import EXIT_CORRUPT, EXIT_FAILED
from maxbrod.planning.tasks import plan_tasks
from maxbrod.sandbox.topics import offsets
from restore.engine import configs_of
from restore.faults import archive, failure_of, renamed, restore
from restore.oracle import assert_restored, log_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.sandbox.cluster import Cluster


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "code"),
    [(Path.unlink, EXIT_FAILED), (cut, EXIT_CORRUPT), (flip, EXIT_CORRUPT)],
    ids=["missing", "cut", "flipped"],
)
@pytest.mark.parametrize("mode", ["exact", "append"])
def test_damage_in_the_archive_is_named_and_costs_no_other_partition(
    cluster: Cluster, topic: str, tmp_path: Path, mode: str, damage: Callable[[Path], None], code: int
) -> None:
    with patch.object(
        backup, "plan_tasks", partial(plan_tasks, pack_bytes_max=1)
    ):  # each partition has its own objects
        config, wanted = archive(cluster, topic, tmp_path / "archive", partitions=2, segment_records=60)
    base = None if mode == "exact" else 0
    (folder,) = (tmp_path / "archive" / "segments" / topic).iterdir()
    objects = sorted((folder / "0").iterdir())
    victim, first_offset = objects[1], int(objects[1].name[:20])
    sound = victim.read_bytes()
    damage(victim)
    report = restore(config, renamed(mode))
    assert report.exit_code == code
    broken, whole = report.partitions
    failure = failure_of(broken)
    assert victim.name in failure["object_name"]
    assert failure["offset"] >= first_offset
    # What stands before the damage is there, and the report says so.
    before = {at: each for at, each in wanted[0].items() if at < first_offset}
    there = log_of(cluster, f"new-{topic}")
    assert list(there.values())[: len(before)] == list(before.values())
    assert list(there.values()) == list(wanted[0].values())[: len(there)]
    assert (broken.end, broken.records) == (offsets(cluster, f"new-{topic}")[1], len(there))
    assert (whole.failure, whole.records) == (None, len(wanted[1]))
    assert_restored(cluster, f"new-{topic}", wanted[1], partition=1, base=base)
    held = configs_of(cluster, f"new-{topic}")
    assert held != configs_of(cluster, topic), "nothing may delete what is there before all is"
    # Mended, the same command goes on.
    victim.write_bytes(sound)
    assert restore(config, renamed(mode)).exit_code == 0
    for partition, records in enumerate(wanted):
        assert_restored(cluster, f"new-{topic}", records, partition=partition, base=base)
    assert configs_of(cluster, f"new-{topic}") == configs_of(cluster, topic)

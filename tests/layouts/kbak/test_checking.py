"""What a check finds by what only this layout has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support import plain_kbak as plain
from support.tool_backups import KBAK, some

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

FIRST = "maxbrod/topics/orders/partition=0/segment-00000000000000000000.bin"
SECOND = "maxbrod/topics/orders/partition=0/segment-00000000000000000005.bin"


@pytest.fixture
def backup(storage: Storage) -> Storage:
    KBAK.add(storage, some(0, 5), codec="none")
    KBAK.add(storage, some(5, 5), codec="none")
    return storage


def test_an_exchanged_segment_is_found_though_it_is_sound(backup: Storage) -> None:
    other = [
        type(each)(offset=each.offset, timestamp=each.timestamp, key=each.key, value=b"x" * 10) for each in some(0, 5)
    ]
    padded = [*other[:-1], type(other[0])(offset=4, timestamp=0, key=b"k4", value=b"x" * 10)]
    backup.replace(FIRST, plain.write_segment(padded))

    assert "the segment has another SHA-256" in [each.message for each in KBAK.faults(backup, deep=True)]


def test_times_that_the_manifest_tells_wrongly_are_found(backup: Storage) -> None:
    manifest = json.loads(bytes(backup.get("maxbrod/manifest.json")))
    manifest["topics"][0]["partitions"][0]["segments"][0]["end_timestamp"] += 1
    backup.replace("maxbrod/manifest.json", json.dumps(manifest).encode())

    assert [(each.path, each.fatal) for each in KBAK.faults(backup, deep=True)] == [(FIRST, False)]


def test_a_segment_under_another_name_is_told(backup: Storage) -> None:
    moved = FIRST.replace("partition=0", "partition=3")
    backup.put(moved, backup.get(FIRST))
    backup.delete([FIRST])
    manifest = bytes(backup.get("maxbrod/manifest.json")).replace(FIRST.encode(), moved.encode())
    backup.replace("maxbrod/manifest.json", manifest)

    assert [(each.path, each.fatal) for each in KBAK.faults(backup, deep=True)] == [(moved, False)]

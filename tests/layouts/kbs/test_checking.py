"""What a check finds by what only this layout has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support.tool_backups import KBS, some

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

FIRST, SECOND, _ = KBS.segments


@pytest.fixture
def backup(storage: Storage) -> Storage:
    KBS.add(storage, some(0, 5), codec="none")
    KBS.add(storage, some(5, 5), codec="none")
    return storage


def test_an_exchanged_segment_is_found_quickly_by_its_header(backup: Storage) -> None:
    backup.replace(FIRST, bytes(backup.get(FIRST))[:16] + bytes(backup.get(SECOND))[16:])
    data = bytearray(backup.get(FIRST))
    data[15] = 3
    backup.replace(FIRST, data)

    assert [(each.path, each.fatal) for each in KBS.faults(backup, deep=False)] == [(FIRST, True)]


def test_sums_that_the_manifest_tells_wrongly_are_found(backup: Storage) -> None:
    manifest = json.loads(bytes(backup.get("maxbrod/manifest.json")))
    manifest["topics"][0]["partitions"][0]["records"] += 1
    backup.replace("maxbrod/manifest.json", json.dumps(manifest).encode())

    assert [(each.path, each.fatal) for each in KBS.faults(backup, deep=False)] == [("maxbrod/manifest.json", True)]

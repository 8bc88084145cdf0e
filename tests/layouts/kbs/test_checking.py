"""What a quick and a deep check of a backup find."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kbs.archives import add, some
from maxbrod.layouts.kbs.checking import check
from maxbrod.layouts.kbs.layout import LAYOUT

if TYPE_CHECKING:
    from maxbrod.layouts.foreign import Fault
    from maxbrod.storage.interface import Storage

FIRST = "maxbrod/topics/orders/0/segment-00000000.kbs"
SECOND = "maxbrod/topics/orders/0/segment-00000001.kbs"


@pytest.fixture
def backup(storage: Storage) -> Storage:
    add(storage, some(0, 5), codec="none")
    add(storage, some(5, 5), codec="none")
    return storage


def _faults(storage: Storage, *, deep: bool) -> list[Fault]:
    survey = LAYOUT.survey(storage)
    assert survey.faults == ()
    return list(check(storage, survey, deep=deep))


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_backup_has_no_fault(backup: Storage, deep: bool) -> None:
    assert _faults(backup, deep=deep) == []
    assert list(check(backup, LAYOUT.survey(backup, {"backup_id": "other"}), deep=deep)) == []


@pytest.mark.parametrize("deep", [False, True])
def test_a_missing_segment_is_found(backup: Storage, deep: bool) -> None:
    backup.delete([FIRST])

    assert [(each.path, each.message, each.fatal) for each in _faults(backup, deep=deep)] == [
        (FIRST, "the segment is missing", True)
    ]


def test_a_segment_of_another_size_is_found_quickly(backup: Storage) -> None:
    backup.replace(FIRST, bytes(backup.get(FIRST))[:-1])

    assert [each.fatal for each in _faults(backup, deep=False)] == [True]


def test_a_flipped_bit_is_found_by_a_deep_check_only(backup: Storage) -> None:
    data = bytearray(backup.get(SECOND))
    data[60] ^= 1
    backup.replace(SECOND, data)

    assert _faults(backup, deep=False) == []
    assert [each.path for each in _faults(backup, deep=True) if each.fatal] == [SECOND]


def test_an_exchanged_segment_is_found_quickly_by_its_header(backup: Storage) -> None:
    backup.replace(FIRST, bytes(backup.get(FIRST))[:16] + bytes(backup.get(SECOND))[16:])
    data = bytearray(backup.get(FIRST))
    data[15] = 3
    backup.replace(FIRST, data)

    assert [(each.path, each.fatal) for each in _faults(backup, deep=False)] == [(FIRST, True)]


def test_sums_that_the_manifest_tells_wrongly_are_found(backup: Storage) -> None:
    manifest = json.loads(bytes(backup.get("maxbrod/manifest.json")))
    manifest["topics"][0]["partitions"][0]["records"] += 1
    backup.replace("maxbrod/manifest.json", json.dumps(manifest).encode())

    assert [(each.path, each.fatal) for each in _faults(backup, deep=False)] == [("maxbrod/manifest.json", True)]


def test_segments_that_no_manifest_names_are_told_and_lose_nothing(backup: Storage) -> None:
    backup.put(FIRST.replace("0.kbs", "7.kbs"), b"")

    assert [(each.message, each.fatal) for each in _faults(backup, deep=True)] == [
        ("no manifest counts this segment", False)
    ]

"""What a quick and a deep check of a backup find."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kbak import plain
from kbak.archives import add, some
from maxbrod.layouts.kbak.checking import check
from maxbrod.layouts.kbak.layout import LAYOUT

if TYPE_CHECKING:
    from maxbrod.layouts.foreign import Fault
    from maxbrod.storage.interface import Storage

FIRST = "maxbrod/topics/orders/partition=0/segment-00000000000000000000.bin"
SECOND = "maxbrod/topics/orders/partition=0/segment-00000000000000000005.bin"


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
    assert [each.path for each in _faults(backup, deep=True) if each.fatal] == [SECOND, SECOND]


def test_an_exchanged_segment_is_found_though_it_is_sound(backup: Storage) -> None:
    other = [
        type(each)(offset=each.offset, timestamp=each.timestamp, key=each.key, value=b"x" * 10) for each in some(0, 5)
    ]
    padded = [*other[:-1], type(other[0])(offset=4, timestamp=0, key=b"k4", value=b"x" * 10)]
    backup.replace(FIRST, plain.write_segment(padded))

    assert "the segment has another SHA-256" in [each.message for each in _faults(backup, deep=True)]


def test_times_that_the_manifest_tells_wrongly_are_found(backup: Storage) -> None:
    manifest = json.loads(bytes(backup.get("maxbrod/manifest.json")))
    manifest["topics"][0]["partitions"][0]["segments"][0]["end_timestamp"] += 1
    backup.replace("maxbrod/manifest.json", json.dumps(manifest).encode())

    assert [(each.path, each.fatal) for each in _faults(backup, deep=True)] == [(FIRST, False)]


def test_segments_that_no_manifest_names_are_told_and_lose_nothing(backup: Storage) -> None:
    backup.put(FIRST.replace("0.bin", "99.bin.zst").replace("000000099", "00000099"), b"")

    assert [(each.message, each.fatal) for each in _faults(backup, deep=True)] == [
        ("no manifest names this segment", False)
    ]


def test_a_segment_under_another_name_is_told(backup: Storage) -> None:
    moved = FIRST.replace("partition=0", "partition=3")
    backup.put(moved, backup.get(FIRST))
    backup.delete([FIRST])
    manifest = bytes(backup.get("maxbrod/manifest.json")).replace(FIRST.encode(), moved.encode())
    backup.replace("maxbrod/manifest.json", manifest)

    assert [(each.path, each.fatal) for each in _faults(backup, deep=True)] == [(moved, False)]

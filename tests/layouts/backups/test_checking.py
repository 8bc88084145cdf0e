"""What a quick and a deep check of a backup find."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.tool_backups import Tool, each_tool, some

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage


@pytest.fixture
def backup(storage: Storage, tool: Tool) -> Storage:
    tool.add(storage, some(0, 5), codec="none")
    tool.add(storage, some(5, 5), codec="none")
    return storage


@each_tool
@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_backup_has_no_fault(tool: Tool, backup: Storage, deep: bool) -> None:
    assert tool.faults(backup, deep=deep) == []
    assert list(tool.layout.check(backup, tool.layout.survey(backup, {"backup_id": "other"}), deep=deep)) == []


@each_tool
@pytest.mark.parametrize("deep", [False, True])
def test_a_missing_segment_is_found(tool: Tool, backup: Storage, deep: bool) -> None:
    backup.delete([tool.segments[0]])

    assert [(each.path, each.message, each.fatal) for each in tool.faults(backup, deep=deep)] == [
        (tool.segments[0], "the segment is missing", True)
    ]


@each_tool
def test_a_segment_of_another_size_is_found_quickly(tool: Tool, backup: Storage) -> None:
    backup.replace(tool.segments[0], bytes(backup.get(tool.segments[0]))[:-1])

    assert [each.fatal for each in tool.faults(backup, deep=False)] == [True]


@each_tool
def test_a_flipped_bit_is_found_by_a_deep_check_only(tool: Tool, backup: Storage) -> None:
    data = bytearray(backup.get(tool.segments[1]))
    data[60] ^= 1
    backup.replace(tool.segments[1], data)

    assert tool.faults(backup, deep=False) == []
    assert {each.path for each in tool.faults(backup, deep=True) if each.fatal} == {tool.segments[1]}


@each_tool
def test_segments_that_no_manifest_counts_are_told_and_lose_nothing(tool: Tool, backup: Storage) -> None:
    backup.put(tool.segments[2], b"")

    [fault] = tool.faults(backup, deep=True)
    assert (fault.path, fault.fatal) == (tool.segments[2], False)
    assert fault.message.startswith("no manifest ")

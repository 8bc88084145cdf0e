"""Any damage to a segment is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from support import plain_kbak, plain_kbs
from support.tool_backups import Tool, each_tool, some

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

PLAIN: Final[dict[str, Any]] = {"kbak": plain_kbak, "kbs": plain_kbs}


@each_tool
@pytest.mark.parametrize("codec", range(3))
def test_any_flipped_bit_is_noticed(tool: Tool, storage: Storage, codec: int) -> None:
    records = some(0, 5)
    stored = PLAIN[tool.name].segment_of(records, codec)
    for at in range(len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 1 << at % 8
        error = tool.refused(storage, bytes(damaged), records)
        assert isinstance(error, CorruptDataError | UnsupportedFormatError)


@each_tool
@pytest.mark.parametrize("codec", range(3))
def test_any_cut_is_noticed(tool: Tool, storage: Storage, codec: int) -> None:
    records = some(0, 5)
    stored = PLAIN[tool.name].segment_of(records, codec)
    for size in range(len(stored)):
        assert isinstance(tool.refused(storage, stored[:size], records), CorruptDataError)

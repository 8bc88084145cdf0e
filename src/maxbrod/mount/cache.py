"""Keeps chunks in memory, up to a bound. One pass over a log never displaces what several readers want.

A chunk comes into the queue of new chunks, and leaves it in the order of arrival. If a second reader asks for it, it
moves among the shared ones, which leave in the order of last use. A reader that catches up asks for each chunk many
times, but no other reader does: its chunks stay in the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.mount.chunks import ChunkPlace, ServedChunk

if TYPE_CHECKING:
    from collections.abc import Hashable

ChunkKey = tuple[int, str, int, ChunkPlace]
"""An archive, an object, where in it a slice begins, and where in that the chunk begins."""
_SHARED_PART: Final = 0.75
_OVERHEAD: Final = 2048


@dataclass(slots=True)
class _Entry:
    chunk: ServedChunk
    reader: Hashable
    bytes: int


class ChunkCache:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._shared_bytes = 0
        self._new: OrderedDict[ChunkKey, _Entry] = OrderedDict()
        self._shared: OrderedDict[ChunkKey, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._new) + len(self._shared)

    def get(self, key: ChunkKey, reader: Hashable) -> ServedChunk | None:
        entry = self._shared.get(key)
        if entry is not None:
            self._shared.move_to_end(key)
            return entry.chunk
        entry = self._new.get(key)
        if entry is None:
            return None
        if entry.reader is None:
            entry.reader = reader
        elif entry.reader != reader:
            del self._new[key]
            self._shared[key] = entry
            self._shared_bytes += entry.bytes
            while self._shared_bytes > self.bytes_max * _SHARED_PART:
                self._demote()
        return entry.chunk

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._shared or key in self._new

    def put(self, key: ChunkKey, chunk: ServedChunk, reader: Hashable = None) -> None:
        """Keep a chunk. `reader` None: it was loaded ahead, and its first reader is yet to come."""
        if key in self:
            return
        # Headers are columns of 8 bytes and less.
        size = chunk.bytes + len(chunk.ends) * 80 + _OVERHEAD
        self._new[key] = _Entry(chunk, reader, size)
        self.bytes += size
        while self.bytes > self.bytes_max and len(self) > 1:
            self._evict()

    def _demote(self) -> None:
        """Let the shared chunk that was used longest ago leave next but the new ones."""
        key, entry = self._shared.popitem(last=False)
        self._shared_bytes -= entry.bytes
        self._new[key] = entry

    def _evict(self) -> None:
        if self._new:
            _, entry = self._new.popitem(last=False)
        else:
            _, entry = self._shared.popitem(last=False)
            self._shared_bytes -= entry.bytes
        self.bytes -= entry.bytes

"""Small archives of this layout, and what is in them."""

from __future__ import annotations

from backups.tools import FACTS, KBAK, WHERE, segment_of, some

NOTHING = KBAK.nothing
write, add, read, read_all = KBAK.write, KBAK.add, KBAK.read, KBAK.read_all

__all__ = ["FACTS", "NOTHING", "WHERE", "add", "read", "read_all", "segment_of", "some", "write"]

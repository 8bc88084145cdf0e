"""Small archives of this layout, and what is in them."""

from __future__ import annotations

from backups.tools import FACTS, KBS, WHERE, segment_of, some

NOTHING = KBS.nothing
write, add, read, read_all = KBS.write, KBS.add, KBS.read, KBS.read_all

__all__ = ["FACTS", "NOTHING", "WHERE", "add", "read", "read_all", "segment_of", "some", "write"]

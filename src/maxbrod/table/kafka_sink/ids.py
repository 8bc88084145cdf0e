"""Transactional ids of the attempts of a process: used again from write to write, so that a cluster keeps few of them.

No two attempts may ever have one id while the end of either is open: the later one would abort what the earlier one
wrote. So an id belongs to one process, which runs one attempt at a time, and none is used twice in one write. When the
next write of the same sink begins, all that was decided before has been ended.
"""

from __future__ import annotations

import os
from typing import Final
from uuid import uuid4

_LAST_USED: Final[dict[tuple[int, str], dict[str, str]]] = {}
"""By process (a fork must not inherit any) and prefix: the ids, and the write that each was used in last."""


def take_id(prefix: str, write: str) -> str:
    """An id that no other attempt has; `write` names all attempts that may be decided on together."""
    mine = _LAST_USED.setdefault((os.getpid(), prefix), {})
    free = next((name for name, last in mine.items() if last != write), None)
    chosen = free or f"{prefix}{uuid4().hex[:16]}"
    mine[chosen] = write
    return chosen

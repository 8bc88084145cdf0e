"""Sets the clocks by which deletions are decided, and the time that passes for one module."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def set_clocks(monkeypatch: pytest.MonkeyPatch, *, own_ms: int | None = None, store_ms: int | None = None) -> None:
    """This machine's clock and the store's stand still there. None: the clock stays as it is."""
    if own_ms is not None:
        monkeypatch.setattr("maxbrod.archive.upkeep.now_ms", lambda: own_ms)
    if store_ms is not None:
        monkeypatch.setattr("maxbrod.archive.upkeep.probe_clock_ms", lambda _: store_ms)


def set_time(monkeypatch: pytest.MonkeyPatch, module: str, **functions: Any) -> None:
    """One module gets other functions of `time`. The threads of libraries and servers keep theirs."""
    monkeypatch.setattr(f"{module}.time", SimpleNamespace(**{**vars(time), **functions}))

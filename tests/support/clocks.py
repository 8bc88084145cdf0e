"""Sets the clocks by which deletions are decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def set_clocks(monkeypatch: pytest.MonkeyPatch, *, own_ms: int | None = None, store_ms: int | None = None) -> None:
    """This machine's clock and the store's stand still there. None: the clock stays as it is."""
    if own_ms is not None:
        monkeypatch.setattr("maxbrod.archive.upkeep.now_ms", lambda: own_ms)
    if store_ms is not None:
        monkeypatch.setattr("maxbrod.archive.upkeep.probe_clock_ms", lambda _: store_ms)

"""Deletes old segments. Before that, the list of what the tree must hold forgets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.facts import forget_segments

if TYPE_CHECKING:
    from collections.abc import Collection

    from maxbrod.layouts.foreign import Survey
    from maxbrod.storage.interface import Storage


def prune(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    forget_segments(storage, survey, going)
    storage.delete(going)

"""Opens an archive again while it is mounted: because it has grown, or because an object is gone.

A mount keeps the version of the catalog that it began with, unless it follows the archive. If an object of that
version is gone, because `gc` has deleted it after a compaction, the records are in others by now: the newest version
names them. Logs then still end where they did, and what was pruned meanwhile is a gap.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import MaxbrodError

if TYPE_CHECKING:
    from maxbrod.mount.ranges import Ranges
    from maxbrod.mount.view import ClusterView, MountedArchive

_LOG: Final = logging.getLogger(__name__)
_AGAIN_S: Final = 30.0
"""The least time between two looks because of a lost object."""


class Renewal:
    """Renews the archives of one view."""

    def __init__(
        self,
        view: ClusterView,
        archives: list[MountedArchive],
        reopen: Callable[[int, Ranges | None], MountedArchive],
        choose: Callable[[Sequence[MountedArchive]], ClusterView],
    ) -> None:
        """`reopen` opens an archive by its number, as new or with given ends; `choose` makes a view of all."""
        self._view, self._archives, self._reopen, self._choose = view, archives, reopen, choose
        self.prepare: Callable[[ClusterView], Any] = lambda _: None
        """Called in a thread with a view before it is shown: it may read the archive."""
        self.on_change: Callable[[Any], None] = lambda _: None
        """Called with what was prepared when the view has changed."""
        self._looked_at: dict[int, float] = {}
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def follow(self, every_s: float) -> None:
        """Move on to newer versions, for ever."""
        while True:
            await asyncio.sleep(every_s)
            for number, archive in enumerate(list(self._archives)):
                try:
                    if not await asyncio.to_thread(archive.is_newest):
                        await self._renew(number, None)
                except MaxbrodError as error:
                    _LOG.warning("%s cannot be followed now: %s", archive.archive.url, error)

    def lost(self, number: int) -> None:
        """An object of an archive is gone: look where its records are by now."""
        now = time.monotonic()
        if now - self._looked_at.get(number, -_AGAIN_S) < _AGAIN_S:
            return
        self._looked_at[number] = now
        task = asyncio.get_running_loop().create_task(self._look(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, number: int) -> None:
        archive = self._archives[number]
        try:
            if not await asyncio.to_thread(archive.is_newest):
                await self._renew(number, archive)
        except MaxbrodError as error:
            _LOG.warning("%s cannot be read again: %s", archive.archive.url, error)

    async def _renew(self, number: int, held: MountedArchive | None) -> None:
        async with self._lock:
            fresh = await asyncio.to_thread(self._reopen, number, None if held is None else held.ranges)
            archives = [fresh if each.number == number else each for each in self._archives]
            view = self._choose(archives)
            await asyncio.to_thread(view.take_over, self._view)
            prepared = await asyncio.to_thread(self.prepare, view)
            self._archives[:] = archives
            self._view.become(view)
            self.on_change(prepared)
            _LOG.info("%s is served as of version %s", fresh.archive.url, fresh.archive.catalog.version)

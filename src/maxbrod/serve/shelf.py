"""The archives that the dashboard shows, and what is known of each.

A volume is one archive. Its edition is what one version of the catalog says: everything that pages need of it is
computed once, and kept until the next edition. A thread looks for news, makes a new edition beside the old one, and
puts it in its place. So a page never waits for a catalog that grows, and says of which moment it is.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import pyarrow as pa

from maxbrod.archive.archive import Archive, Proof, ProofKind, last_proof, open_archive, read_proofs
from maxbrod.archive.look import ArchiveLook, look_at
from maxbrod.archive.runs import RunSummary, lacking_runs, list_runs
from maxbrod.catalog.catalog import Catalog
from maxbrod.errors import MaxbrodError
from maxbrod.inspect.listing import TopicListing, list_topics
from maxbrod.inspect.promises import ArchiveFacts, judge
from maxbrod.inspect.status import gather, price_of, unreadable
from maxbrod.model import now_ms
from maxbrod.notices import Promise
from maxbrod.serve.pages.topics import GroupLag, group_lags

if TYPE_CHECKING:
    from maxbrod.config import Config

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)
_KEPT: Final = 128
"""Facts of single pages that an edition keeps."""
_FEW: Final = 6
"""The same of facts that take megabytes."""
_PAUSE: Final = 10
"""A new edition is made after this many times what making the last one took: looking must not be all that is done."""
_FOREIGN_S: Final = 300.0
"""Archives of other tools have no version: they are read again after this time."""
_LOOK: Final = "look"


class Edition:
    """One version of an archive, and what was found out about it. Thread-safe."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.made_at_ms = now_ms()
        self.facts: ArchiveFacts | None = None
        """None: nobody has checked it yet."""
        self.proofs: list[Proof] = []
        # A catalog is not thread-safe; and two pages of a large archive at a time would need twice the memory.
        self._lock = threading.RLock()
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._large: OrderedDict[Hashable, Any] = OrderedDict()

    @property
    def version(self) -> int | None:
        return self.archive.catalog.version if self.archive.is_native else None

    def keep(self, key: Hashable, find: Callable[[], T], *, large: bool = False) -> T:
        """Return what `find` has returned for this key. Those that were used longest ago are forgotten."""
        kept, most = (self._large, _FEW) if large else (self._kept, _KEPT)
        with self._lock:
            if key not in kept:
                kept[key] = find()
                while len(kept) > most:
                    kept.popitem(last=False)
            kept.move_to_end(key)
            found: T = kept[key]
            return found

    @property
    def look(self) -> ArchiveLook:
        return self.keep(_LOOK, lambda: look_at(self.archive))

    @property
    def listing(self) -> TopicListing:
        return self.keep("listing", lambda: list_topics(self.archive, look=self.look))

    @property
    def lags(self) -> dict[str, GroupLag]:
        """By topic id: how far its groups were behind at the last backup."""
        return self.keep("lags", lambda: group_lags(self.look.moment))

    @property
    def lacking(self) -> set[str]:
        """Runs that cannot be restored whole any more."""
        return self.keep("lacking", lambda: lacking_runs(self.archive))

    @property
    def runs(self) -> list[RunSummary]:
        """Oldest first; none of another tool's archive, which does not record them."""
        if not self.archive.is_native:
            return []
        return self.keep("runs", lambda: list_runs(self.archive, lacking=self.lacking))

    def drop_look(self) -> None:
        """Forget the snapshot of every partition, which is most of what an edition holds. It can be read again."""
        with self._lock:
            self._kept.pop(_LOOK, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What an archive promises now: old facts, judged by the present time."""

    promises: tuple[Promise, ...]
    facts: ArchiveFacts | None
    checked_at_ms: int | None
    """When the facts were gathered; None: not yet."""


class Volume:
    """One archive of the dashboard."""

    def __init__(self, slug: str, url: str, config: Config) -> None:
        """`slug` names it in addresses of pages."""
        self.slug, self.url = slug, url
        self._config = config
        self._price = price_of(config.status)
        self.edition: Edition | None = None
        """None: it has not been read yet, or could not be."""
        self.error: MaxbrodError | None = None
        """Why it could not be read when it was last tried."""
        self._made_s = self._took_s = 0.0

    def judged(self, clock_ms: int) -> Judged:
        """Judge what is known by the time of now."""
        edition = self.edition
        facts = None if edition is None else edition.facts
        failed = () if self.error is None else (unreadable(self.error),)
        if edition is None or facts is None:
            return Judged(promises=failed, facts=None, checked_at_ms=None)
        deep, drill = (last_proof(edition.proofs, kind) for kind in (ProofKind.DEEP_CHECK, ProofKind.DRILL))
        now = replace(facts, now_ms=clock_ms, deep_check=deep, drill=drill)
        promises = (*failed, *judge(now, self._config.status, self._price))
        return Judged(promises=promises, facts=now, checked_at_ms=facts.now_ms)

    def renew(self) -> None:
        """Look for news, and make a new edition if there are any. An archive that cannot be read keeps its old one."""
        try:
            self._renew()
            self.error = None
        except MaxbrodError as error:
            _LOG.warning("%s cannot be read now: %s", self.url, error)
            self.error = error

    def _renew(self) -> None:
        old, now_s = self.edition, time.monotonic()
        if old is not None:
            old.proofs = read_proofs(old.archive.storage)
            if now_s - self._made_s < self._took_s * _PAUSE or not self._is_old(old, now_s):
                return
        archive = open_archive(self.url, self._config.storage, layout=self._config.layout)
        fresh = Edition(archive)
        fresh.proofs = read_proofs(archive.storage)
        if old is None:
            # Everything but the check, so that pages are there at once.
            _ = fresh.listing, fresh.lags, fresh.runs
            self.edition = fresh
        else:
            old.drop_look()
        # A check of a large archive needs most of the memory that there should be.
        fresh.drop_look()
        pa.default_memory_pool().release_unused()
        fresh.facts = gather(archive if old is not None else self._opened(), now_ms())
        pa.default_memory_pool().release_unused()
        # The snapshot too: otherwise the first page of a topic would wait for it.
        _ = fresh.look, fresh.listing, fresh.lags, fresh.runs
        self.edition = fresh
        self._made_s, self._took_s = time.monotonic(), time.monotonic() - now_s

    def _opened(self) -> Archive:
        """The archive once more: pages ask the catalog of the first one meanwhile, and it is not thread-safe."""
        return open_archive(self.url, self._config.storage, layout=self._config.layout)

    def _is_old(self, edition: Edition, now_s: float) -> bool:
        catalog = edition.archive.catalog
        if isinstance(catalog, Catalog):
            return not catalog.is_newest()
        return now_s - self._made_s > _FOREIGN_S


class Shelf:
    """All archives, and the thread that keeps them up to date. Use it in a `with`."""

    def __init__(self, urls: Sequence[str], config: Config, *, every_s: float) -> None:
        self.config = config
        self.volumes = {slug: Volume(slug, url, config) for slug, url in zip(slugs_of(urls), urls, strict=True)}
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="shelf", daemon=True)
        self.moved_s = time.monotonic()
        """When the thread last did something."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def is_alive(self) -> bool:
        """False if nothing is kept up to date any more."""
        return self._thread.is_alive()

    def renew(self) -> None:
        """Look once at every archive."""
        for volume in self.volumes.values():
            if self._over.is_set():
                return
            volume.renew()
            self.moved_s = time.monotonic()

    def _keep(self) -> None:
        while not self._over.is_set():
            try:
                self.renew()
            except Exception:  # noqa: BLE001 - the last line of defence
                # One archive that our own code cannot cope with must not hide the others.
                _LOG.exception("looking at the archives has failed")
            self._over.wait(self._every_s)


def slugs_of(urls: Sequence[str]) -> list[str]:
    """A short name for each archive, made of the end of its URL, all different."""
    found: list[str] = []
    for url in urls:
        word = re.sub(r"[^A-Za-z0-9-]+", "-", PurePosixPath(url.rstrip("/")).name).strip("-").lower() or "archive"
        number, slug = 1, word
        while slug in found:
            number += 1
            slug = f"{word}-{number}"
        found.append(slug)
    return found

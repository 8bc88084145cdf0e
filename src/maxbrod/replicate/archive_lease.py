"""The lease of an archive: one instance of egress works, the others stand by.

Each renewal creates an object with the next number, which a store does once: of two instances that try, one fails. The
instance whose object has the highest number holds the lease. If that number has not grown for some time, as measured by
the clock of the one that waits, the holder is lost, and whoever creates the next object takes its place.

The lease keeps instances from doing the same work twice. Commits of the catalog are conditional, too: an instance that
was stopped in the middle of a run and continues after another one has committed is refused.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError, ObjectExistsError, ObjectNotFoundError
from maxbrod.replicate.lease import RENEWALS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maxbrod.storage.interface import Storage

FOLDER: Final = "replication/lease"
_POLL_S: Final = 0.2


class ArchiveLease:
    """The lease as one instance sees it."""

    def __init__(self, storage: Storage, *, takeover_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._takeover_s, self._clock = storage, takeover_s, clock
        self.instance = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.takeovers = 0
        """How often this instance has taken it from one that was lost."""
        self.holder: str | None = None
        """Who was last seen to hold it."""
        self._number: int | None = None
        """The number of this instance's newest object, while it holds the lease."""
        self._renewed_at = 0.0
        self._seen = -1
        self._seen_at = 0.0

    @property
    def held(self) -> bool:
        """Whether it was held when that was last looked at, and nobody can have taken it since."""
        return self._number is not None and self._clock() - self._renewed_at < self._takeover_s

    def hold(self) -> bool:
        """Whether this instance holds the lease now: take it if it is free, renew it if it is due."""
        if self.renew():
            return True
        number, self.holder = self._newest()
        if number != self._seen:
            self._seen, self._seen_at = number, self._clock()
        lost = self._clock() - self._seen_at >= self._takeover_s
        if self.holder is not None and not lost:
            return False
        taken = self._put(number + 1)
        self.takeovers += taken and self.holder is not None
        return taken

    def renew(self) -> bool:
        """Whether it is still held: renew it if it is due."""
        if self._number is None:
            return False
        if self._clock() - self._renewed_at >= self._takeover_s / RENEWALS and not self._put(self._number + 1):
            self._number = None
        return self._number is not None

    def release(self) -> None:
        """Let another instance take it at once."""
        if self._number is not None:
            self._put(self._number + 1, instance=None)
            self._number = None

    @contextmanager
    def kept(self, stop: threading.Event, ending: threading.Event) -> Iterator[None]:
        """Renew it within the block. `ending` is set when `stop` is, or when the lease is lost."""
        over = threading.Event()

        def keep() -> None:
            # It polls `stop`: waiting on the event would hold its lock when a signal handler sets it.
            while not over.wait(_POLL_S) and not ending.is_set():
                with suppress(MaxbrodError):  # a store that does not answer has until the lease runs out
                    self.renew()
                if stop.is_set() or not self.held:
                    ending.set()

        keeper = threading.Thread(target=keep, name="lease", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join()

    def _put(self, number: int, *, instance: str | None = "") -> bool:
        """Create the object of this number. False: another instance has."""
        began, path = self._clock(), _path(number)
        note = {"maxbrod": 1, "instance": self.instance if instance == "" else instance, "by": self.instance}
        try:
            self._storage.put(path, json.dumps(note).encode())
        except ObjectExistsError:
            if self._read(number).get("by") != self.instance:  # or it is ours, and the answer was lost
                return False
        newest = self._numbers()[-1]
        if newest != number:  # the holder has deleted the object that this one would have met
            self._storage.delete([path])
            return False
        self._storage.delete([_path(each) for each in self._numbers() if each < number])
        self._number, self._renewed_at = number, began
        return True

    def _newest(self) -> tuple[int, str | None]:
        numbers = self._numbers()
        if not numbers:
            return 0, None
        holder = self._read(numbers[-1]).get("instance")
        return numbers[-1], holder

    def _read(self, number: int) -> dict[str, str | None]:
        try:
            note: dict[str, str | None] = json.loads(bytes(self._storage.get(_path(number))))
        except ObjectNotFoundError:
            return {"instance": "another one"}  # which has renewed it meanwhile
        return note

    def _numbers(self) -> list[int]:
        names = (each.path.rpartition("/")[2].partition(".")[0] for each in self._storage.list(FOLDER))
        return sorted(int(name) for name in names if name.isdigit())


def _path(number: int) -> str:
    return f"{FOLDER}/{number:012d}.json"

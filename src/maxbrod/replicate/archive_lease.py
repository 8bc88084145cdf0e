"""The lease of an archive: the instance of egress that has it leads, and says which instance archives what.

Each renewal creates an object with the next number, which a store does once: of two instances that try, one fails. The
instance whose object has the highest number holds the lease. If that number has not grown for some time, as measured by
the clock of the one that waits, the holder is lost, and whoever creates the next object takes its place.

The object names the division of the partitions, which is an object of its own, and the fence. The fence is a number in
the catalog. An instance commits with the number that it found beside its share; if the catalog has a higher one, the
commit is refused. It is raised before anything is given to another instance that a lost one had. So an instance that
was stopped, and continues after it was taken for lost, can commit nothing.
"""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod import strict_json
from maxbrod.errors import MaxbrodError, ObjectExistsError, ObjectNotFoundError, UnavailableError
from maxbrod.model import TopicPartition, now_ms
from maxbrod.replicate.lease import Lease, Posted
from maxbrod.replicate.members import Life, read_life
from maxbrod.replicate.sharing import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maxbrod.storage.interface import Storage

FOLDER: Final = "replication/lease"
SHARES: Final = "replication/shares"
_READS: Final = 20
"""The number of attempts to read an object that its holder deletes because it has written the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The content of the lease's object."""

    number: int
    instance: str | None
    """The holder; None: it was given back."""
    by: str | None = None
    """The instance that wrote it."""
    generation: int = 0
    fence: int = 0
    shares: str | None = None
    """The object with the division; None: whoever holds the lease has everything."""
    life: Life | None = None
    """When it was written; None: a version wrote it that does not say when."""

    @property
    def posted(self) -> Posted:
        return Posted(instance=self.instance, count=self.number, generation=self.generation, fence=self.fence)


_FREE: Final = Note(number=0, instance=None)


class ArchiveLease(Lease):
    """The lease of an archive. Its catalog is fenced by a number."""

    def __init__(
        self,
        storage: Storage,
        *,
        takeover_s: float,
        raise_fence: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`raise_fence` raises the fence of the archive's catalog."""
        super().__init__(takeover_s=takeover_s, clock=clock)
        self._storage, self._raise_fence = storage, raise_fence
        self._found = _FREE
        """The newest object, as last read."""
        self._note: Note | None = None
        """This instance's newest object, while it holds the lease."""
        self._division: dict[TopicPartition, Share] = {}

    @property
    def fence(self) -> int:
        return 0 if self._note is None else self._note.fence

    def _look(self) -> Posted:
        self._found = read_note(self._storage)
        return self._found.posted

    def _take(self) -> bool:
        found = self._found
        # Whoever held it and has not given it back may still be at work, even this instance before an error.
        fence = found.fence + (found.instance is not None)
        try:
            division = read_division(self._storage, found)
        except ObjectNotFoundError:
            return False  # its holder has told another one meanwhile
        if not self._put(replace(found, number=found.number + 1, instance=self.instance, fence=fence)):
            return False
        try:
            if fence > found.fence:
                self._raise_fence(fence)
        except MaxbrodError:
            self._note = None  # it is taken again, behind another fence
            raise
        self.generation, self._division = found.generation, division
        return True

    def _is_held(self) -> bool:
        return self._note is not None

    def _renew(self) -> bool:
        note = self._note
        if note is not None and not self._put(replace(note, number=note.number + 1)):
            self._note = None
        return self._note is not None

    def publish(self, changes: Mapping[TopicPartition, Share], generation: int, *, fence: bool) -> bool:
        note = self._note
        if note is None:
            return False
        division = {**self._division, **changes}
        path = f"{SHARES}/{generation:012d}-{uuid.uuid4().hex[:8]}.json"
        if fence:
            self._raise_fence(note.fence + 1)
        self._storage.put(path, _encode_division(division))
        told = replace(
            note, number=note.number + 1, generation=generation, fence=note.fence + fence, shares=path, by=self.instance
        )
        try:
            published = self._put(told)
        except MaxbrodError:
            self._note = None  # whether it was told is unknown: who takes the lease next, even this one, reads it
            raise
        if not published:
            self._note = None
            self._storage.delete([path])
            return False
        self.generation, self._division = generation, division
        self._storage.delete([each.path for each in self._storage.list(SHARES) if each.path < path])
        return True

    def division(self) -> tuple[Posted, dict[TopicPartition, Share]]:
        for _ in range(_READS):
            note = read_note(self._storage)
            with suppress(ObjectNotFoundError):  # the next one has been told meanwhile
                return note.posted, read_division(self._storage, note)
        raise UnavailableError("the division of the partitions cannot be read", object_name=note.shares)

    def release(self) -> None:
        if self._note is not None:
            self._put(replace(self._note, number=self._note.number + 1, instance=None))
            self._note = None

    def _put(self, note: Note) -> bool:
        """Create the object of a note. False: another instance has created one of this number, or of a later one."""
        began, path = self._clock(), _path(note.number)
        note = replace(note, life=Life(at_ms=now_ms(), takeover_ms=int(self._takeover_s * 1000)))
        try:
            self._storage.put(path, _encode(note, by=self.instance))
        except ObjectExistsError:
            if _read(self._storage, note.number) != replace(note, by=self.instance):
                return False  # or it is ours, and the answer was lost
        numbers = _numbers(self._storage)
        if numbers[-1:] != [note.number]:  # the holder has deleted the object that this one would have met
            self._storage.delete([path])
            return False
        self._storage.delete([_path(number) for number in numbers if number < note.number])
        self._note, self._renewed_at = note, began
        return True


def read_note(storage: Storage) -> Note:
    """Return the content of the object with the highest number."""
    for _ in range(_READS):
        numbers = _numbers(storage)
        if not numbers:
            return _FREE
        with suppress(ObjectNotFoundError):  # its holder has written the next one meanwhile
            return _read(storage, numbers[-1])
    raise UnavailableError("the lease cannot be read: it changes all the time", object_name=storage.name_of(FOLDER))


def read_division(storage: Storage, note: Note) -> dict[TopicPartition, Share]:
    """The shares that a note names. ObjectNotFoundError: a later note names others."""
    if note.shares is None:
        return {}
    document = strict_json.parse(storage.get(note.shares))
    return {
        TopicPartition(topic=topic, partition=int(number)): Share(owner=owner, left=left, generation=generation)
        for topic, partitions in document["shares"].items()
        for number, (owner, left, generation) in partitions.items()
    }


def _encode_division(division: Mapping[TopicPartition, Share]) -> bytes:
    shares: dict[str, dict[str, Any]] = {}
    for where, share in sorted(division.items()):
        shares.setdefault(where.topic, {})[str(where.partition)] = [share.owner, share.left, share.generation]
    return json.dumps({"maxbrod": 1, "shares": shares}, separators=(",", ":")).encode()


def _encode(note: Note, *, by: str) -> bytes:
    return json.dumps(
        {
            "maxbrod": 1,
            "instance": note.instance,
            "by": by,
            "generation": note.generation,
            "fence": note.fence,
            "shares": note.shares,
            **({} if note.life is None else asdict(note.life)),
        }
    ).encode()


def _read(storage: Storage, number: int) -> Note:
    found: dict[str, Any] = strict_json.parse(storage.get(_path(number)))
    return Note(
        number=number,
        instance=found["instance"],
        by=found.get("by"),
        generation=int(found.get("generation", 0)),
        fence=int(found.get("fence", 0)),
        shares=found.get("shares"),
        life=read_life(found),
    )


def _numbers(storage: Storage) -> list[int]:
    names = (each.path.rpartition("/")[2].partition(".")[0] for each in storage.list(FOLDER))
    return sorted(int(name) for name in names if name.isdigit())


def _path(number: int) -> str:
    return f"{FOLDER}/{number:012d}.json"

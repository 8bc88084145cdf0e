"""The lease of an archive: the instance of egress that has it leads, and says which instance archives what.

Each renewal creates an object with the next number, which a store does once: of two instances that try, one fails. The
instance whose object has the highest number holds the lease. If that number has not grown for some time, as measured by
the clock of the one that waits, the holder is lost, and whoever creates the next object takes its place.

The object names the division of the partitions, which is an object of its own, and the fence. The fence is a number in
the catalog. An instance commits with the number that it found beside its share; if the catalog has a higher one, the
commit is refused. It is raised before anything is given to another instance that a lost one had. So an instance that
was stopped, and continues after it was taken for lost, can commit nothing.

Members are objects of the archive, too. Instances believe no clock but their own; times in the objects are for people,
who look once.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod import strict_json
from maxbrod.archive.numbered import NumberedDocuments
from maxbrod.archive.signs_of_life import LEASE, MEMBERS
from maxbrod.errors import MaxbrodError, ObjectNotFoundError, UnavailableError
from maxbrod.model import TopicPartition, now_ms
from maxbrod.replicate.shares import Lease, Member, Members, Posted
from maxbrod.replicate.sharing import Share

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

FOLDER: Final = LEASE
SHARES: Final = "replication/shares"
_READS: Final = 20
"""The number of attempts to read a division that the leader deletes because it has told the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A sign of life of an instance of egress: when it lived, and after which silence others take over."""

    at_ms: int
    takeover_ms: int


def read_life(note: Mapping[str, Any]) -> Life | None:
    """None: a version wrote it that does not say when."""
    return Life(at_ms=int(note["at_ms"]), takeover_ms=int(note["takeover_ms"])) if "at_ms" in note else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The content of the lease's object."""

    number: int
    instance: str | None
    """The holder; None: it was given back."""
    by: str | None = None
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


class ArchiveLease(Lease[Note]):
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
        self._division: dict[TopicPartition, Share] = {}

    @property
    def fence(self) -> int:
        return 0 if self._held is None else self._held.fence

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
            self._held = None  # it is taken again, behind another fence
            raise
        self.generation, self._division = found.generation, division
        return True

    def _renew(self, held: Note) -> bool:
        if not self._put(replace(held, number=held.number + 1)):
            self._held = None
        return self._held is not None

    def publish(self, changes: Mapping[TopicPartition, Share], generation: int, *, fence: bool) -> bool:
        note = self._held
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
            self._held = None  # whether it was told is unknown: who takes the lease next, even this one, reads it
            raise
        if not published:
            self._held = None
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
        if self._held is not None:
            self._put(replace(self._held, number=self._held.number + 1, instance=None))
            self._held = None

    def _put(self, note: Note) -> bool:
        """Create the object of a note. False: another instance has created one of this number, or of a later one."""
        began = self._clock()
        note = replace(note, life=Life(at_ms=now_ms(), takeover_ms=int(self._takeover_s * 1000)))
        if not NumberedDocuments(self._storage, FOLDER).put(note.number, _encode(note, by=self.instance)):
            return False
        self._held, self._renewed_at = note, began
        return True


def read_note(storage: Storage) -> Note:
    """Return the content of the object with the highest number."""
    found = NumberedDocuments(storage, FOLDER).newest()
    return _FREE if found is None else _decode(*found)


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
    said = {name: value for name, value in asdict(note).items() if name not in {"number", "life"}}
    return json.dumps({"maxbrod": 1, **said, "by": by, **({} if note.life is None else asdict(note.life))}).encode()


def _decode(number: int, data: memoryview) -> Note:
    found: dict[str, Any] = strict_json.parse(data)
    return Note(
        number=number,
        instance=found["instance"],
        by=found.get("by"),
        generation=int(found.get("generation", 0)),
        fence=int(found.get("fence", 0)),
        shares=found.get("shares"),
        life=read_life(found),
    )


class ArchiveMembers(Members):
    """Each member has an object in the archive, which it replaces, or a folder if nothing may be overwritten."""

    def __init__(
        self, storage: Storage, instance: str, *, takeover_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(instance, takeover_s=takeover_s, clock=clock)
        self._storage = storage

    def _say(self, heard: int) -> None:
        life = Life(at_ms=now_ms(), takeover_ms=int(self._takeover_s * 1000))
        note = {"maxbrod": 1, "instance": self._instance, "count": self._count, "heard": heard, **asdict(life)}
        if self._storage.creates_only:
            self._storage.put(f"{MEMBERS}/{self._instance}/{self._count:012d}.json", json.dumps(note).encode())
        else:
            self._storage.replace(f"{MEMBERS}/{self._instance}.json", json.dumps(note).encode())

    def _take_back(self) -> None:
        if self._told is not None:
            self._storage.delete([f"{MEMBERS}/{self._instance}.json"])

    def forget(self, instances: Iterable[str]) -> None:
        """Delete what lost members have said. One that was only stopped says it again."""
        self._storage.delete([f"{MEMBERS}/{instance}.json" for instance in instances])

    def _read(self) -> list[Member]:
        return [member for member, _ in _read_notes(self._storage)]


def read_lives(storage: Storage) -> dict[str, Life | None]:
    """Return the last signs of life of the instances that follow another one, for whoever looks only once."""
    return {member.instance: life for member, life in _read_notes(storage)}


def _read_notes(storage: Storage) -> list[tuple[Member, Life | None]]:
    found = []
    newest = {_member_of(info.path): info.path for info in storage.list(MEMBERS)}
    for path in newest.values():
        with suppress(ObjectNotFoundError, ValueError, KeyError, TypeError):
            note = strict_json.parse(storage.get(path))
            member = Member(instance=note["instance"], slot=0, count=int(note["count"]), heard=int(note["heard"]))
            found.append((member, read_life(note)))
    return found


def _member_of(path: str) -> str:
    """The instance that an object is of: the object's own name, or that of its folder."""
    return path.removeprefix(f"{MEMBERS}/").partition("/")[0].removesuffix(".json")

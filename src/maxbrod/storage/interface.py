"""The contract of every storage. The docstring of a method is its contract, and one conformance suite tests them all.

An object has a name, and every reader sees it whole or not at all. In an archive of the native layout an object is
written once and never changes: creating an object is how that layout commits. `replace` is for layouts of other tools,
whose files change under one name. There is no rename and no append.

A storage detects an answer that is too short. It cannot detect bytes that were altered on the way or on the disk:
readers check digests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Buffer

    from maxbrod.config import SigningConfig

SEAL: Final = b"MXBS"
"""The first bytes of every object of an encrypted archive, except those of the folder of its keys."""
KEYS: Final = "keys"
"""The folder of the keys of an encrypted archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """An object as a storage lists it, without reading it. `etag` distinguishes two objects of the same name."""

    path: str
    size: int
    modified_ms: int
    etag: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldObject:
    """An object that was to be deleted, and that a lock, a policy or a missing right keeps."""

    path: str
    reason: str
    until_ms: int | None = None
    """When its lock ends; None: unknown, or no lock keeps it."""
    size: int | None = None
    """None: unknown."""
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    start: int
    size: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.size < 0:
            raise UsageError(f"cannot read {self.size} bytes from byte {self.start}")


class Writer(ABC):
    """An object that is being written. The end of its `with` block commits it; an error in the block aborts it."""

    size: int = 0
    """The bytes written so far."""

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Append bytes. The caller may reuse `data` when this returns. After an error only `abort` may be called."""

    @abstractmethod
    def commit(self) -> None:
        """Make the whole object visible and durable, or raise and leave nothing visible.

        ObjectExistsError: the name is taken. UnavailableError: it is unknown whether the object exists; its name must
        then never be used for other bytes.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discard the object. Never raises: remains that cannot be removed now are invisible anyway."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()


class Storage(ABC):
    """A flat set of named objects under one URL.

    Every operation ends: it retries transient errors (500, 503, timeouts, broken connections) with growing pauses until
    the configured deadline, then raises UnavailableError. A caller may then repeat it, unless the contract says
    otherwise. Names that could leave the root are refused with UsageError before anything is sent. Every error names
    the operation and the object, and never a secret.
    """

    distant: bool = True
    """True if a read waits for a network, so that a reader should have several under way."""
    signing: SigningConfig | None = None
    """The keys of the catalog in this storage. If there are any, what is written gets digests that withstand a forger.
    A storage does nothing with them: they are here because whoever writes to an archive has one."""
    encrypted: bool = False
    """True if it seals what is written and opens what is read."""
    creates_only: bool = False
    """True if it overwrites and deletes nothing, because its user may not."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"

    def name_of(self, path: str) -> str:
        """The object's name in errors."""
        return f"{self.url}/{path}" if path else self.url

    def recipients(self) -> tuple[str, ...]:
        """The labels of the keys of an encrypted archive, any one of which opens it; empty if it is not encrypted."""
        return ()

    def demand_records(self) -> None:  # noqa: B027 - most storages demand nothing
        """RefusedError: the key at hand writes records, and cannot read them."""

    def stored_name(self, path: str) -> str:
        """The name of an object in the store itself, below its root: an encrypted archive hides names."""
        return path

    def held_back(self) -> Sequence[HeldObject]:
        """Every object that this storage was asked to delete, and that the store refused to delete."""
        return ()

    def at_hand(self) -> Storage:
        """The same storage, but objects written through it are readable at once: never in a colder storage class."""
        return self

    @abstractmethod
    def put(self, path: str, data: Buffer) -> None:
        """Create an object. When this returns it is durable and every reader sees all of it.

        ObjectExistsError: the name was taken, by the same bytes or others, and nothing changed. If the answer is lost
        and a retry meets the object that this very call created, the call recognises it and succeeds.
        UnavailableError: the object may exist or may still appear, whole; a caller that repeats the call must expect
        ObjectExistsError.
        """

    @abstractmethod
    def replace(self, path: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        """Create or overwrite an object. A reader sees all of the old bytes or all of the new ones.

        `metadata` is for other programs: it is kept with the object if the store can, and directories cannot. Names are
        lower-case letters, because stores disagree about everything else.

        When this returns the new object is durable. UnavailableError: it is the old or the new one; repeat the call.
        Of two simultaneous writers either one wins. ForbiddenError: the storage overwrites nothing.
        """

    @abstractmethod
    def create(self, path: str) -> Writer:
        """Write a large object piece by piece in bounded memory; see `Writer`.

        Nobody else may write to the name (ours carry a nonce). A taken name is refused as in `put`, but an upload of
        several parts is conditional only in a storage that creates and never overwrites: elsewhere the store does not
        decide between two simultaneous writers.
        """

    @abstractmethod
    def get(self, path: str, *, size: int | None = None) -> memoryview:
        """All bytes of an object. TruncatedDataError: it does not have the `size` that the caller expects.

        CorruptDataError: it has more than `bounds.OBJECT_BYTES_MAX` bytes; nothing of it was read then.
        """

    def get_stored(self, path: str) -> memoryview:
        """All bytes that the store holds of an object, also those that an encrypted archive cannot open."""
        return self.get(path)

    @abstractmethod
    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        """Several ranges, in the given order. TruncatedDataError: the object ends before one of them does."""

    def get_range(self, path: str, start: int, size: int) -> memoryview:
        """Exactly `size` bytes from `start`. TruncatedDataError: the object ends before that."""
        return self.get_ranges(path, [ByteRange(start=start, size=size)])[0]

    @abstractmethod
    def head(self, path: str) -> ObjectInfo:
        """Size, time and etag of an object; ObjectNotFoundError if there is none."""

    @abstractmethod
    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        """Every object whose name starts with `folder/`, or all, in the order of the names' UTF-8 bytes.

        Lists every object that was complete before the call and not deleted since. Objects that are created or deleted
        during the call may or may not be listed.
        """

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> Sequence[HeldObject]:
        """Delete objects; a missing one counts as deleted. Return those that the storage refuses to delete.

        One that is refused keeps none of the others. After an error some may be deleted: repeat the call.
        """

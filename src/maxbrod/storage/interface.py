"""What every storage promises. The comment on a method is its contract, and one suite of tests holds all to it.

An object has a name and is whole or absent for every reader at every instant. In an archive of the native layout it is
written once and never changes: what is committed there is committed by creating an object. `replace` is for layouts of
other tools, which keep files of one name that change. There is no rename and no append.

A storage notices an answer that is shorter than it should be. It cannot notice bytes that were exchanged on the way
or on the disk: whoever reads checks digests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a storage knows of an object without reading it. `etag` tells two objects of one name apart."""

    path: str
    size: int
    modified_ms: int
    etag: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    start: int
    size: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.size < 0:
            raise UsageError(f"{self.size} bytes from byte {self.start} on cannot be read")


class Writer(ABC):
    """An object on its way in. Its block commits it; a block that ends in an error aborts it."""

    size: int = 0
    """The bytes written so far."""

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Add bytes. `data` may be used again when this returns. After an error only `abort` makes sense."""

    @abstractmethod
    def commit(self) -> None:
        """Make the object visible and durable, all of it, or raise and leave nothing visible.

        ObjectExistsError: the name is taken. UnavailableError: it could not be learned whether the object is there;
        its name must then never be used for other bytes.
        """

    @abstractmethod
    def abort(self) -> None:
        """Forget the object. Never raises: what cannot be removed now is invisible anyway."""

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

    Every operation ends: it retries what a retry can help (500, 503, timeouts, cut connections) with growing pauses
    until the deadline of its configuration, then raises UnavailableError. A caller may repeat any of them after that,
    where the contract says nothing else. Names that could leave the root are refused with UsageError before anything
    is sent. Every error names the operation and the object, and never a secret.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"

    def name_of(self, path: str) -> str:
        """The object as errors call it."""
        return f"{self.url}/{path}" if path else self.url

    def at_hand(self) -> Storage:
        """The same objects, but what is written through it can always be read at once, in no colder storage class."""
        return self

    @abstractmethod
    def put(self, path: str, data: Buffer) -> None:
        """Create an object. When this returns it is durable and every reader sees all of it.

        ObjectExistsError: the name was taken, by equal bytes or others, and nothing changed. An object that this very
        call created, whose answer was lost, is recognised as its own. UnavailableError: the object may be there or
        may still appear, whole; a caller that repeats the call must be ready for ObjectExistsError.
        """

    @abstractmethod
    def replace(self, path: str, data: Buffer) -> None:
        """Create an object, or put other bytes in the place of one. A reader finds all of the old or all of the new.

        When this returns the new one is durable. UnavailableError: it is the old one or the new one; repeat the call.
        Of two writers at once either one wins.
        """

    @abstractmethod
    def create(self, path: str) -> Writer:
        """Write a large object piece by piece in bounded memory; see `Writer`.

        The name must be one that nobody else writes to (ours carry a nonce). A taken name is refused like in `put`,
        but where an upload has several parts the store cannot be asked to decide between two writers at once.
        """

    @abstractmethod
    def get(self, path: str, *, size: int | None = None) -> memoryview:
        """All bytes of an object. TruncatedDataError: it does not have the `size` that the caller knows it to have."""

    @abstractmethod
    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        """Several ranges, in the order asked for. TruncatedDataError: the object ends before one of them does."""

    def get_range(self, path: str, start: int, size: int) -> memoryview:
        """Exactly `size` bytes from `start` on. TruncatedDataError: the object ends before that."""
        return self.get_ranges(path, [ByteRange(start=start, size=size)])[0]

    @abstractmethod
    def head(self, path: str) -> ObjectInfo:
        """What is known of an object; ObjectNotFoundError if there is none."""

    @abstractmethod
    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        """Every object whose name starts with `folder/`, or all, in the order of the names' UTF-8 bytes.

        What was complete before the call is listed; what comes or goes meanwhile may or may not be.
        """

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects; one that is not there counts as removed. After an error some may be gone: repeat."""

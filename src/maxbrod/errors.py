"""Every error that maxbrod raises on purpose, and the exit code of each.

    MaxbrodError                    1  failed
    ├── UsageError                  2  the command, the configuration or an argument is wrong
    │   └── NoArchiveError          2  nothing is at the archive's URL
    ├── IncompleteError             3  something is neither archived nor explained
    ├── CorruptDataError            4  bytes are not what they claim to be
    │   ├── BatchLimitError         5  records unpack to more than is decoded; their bytes may well be sound
    │   └── TruncatedDataError      4  bytes end before they should
    ├── RefusedError                5  continuing could lose or mix data
    │   ├── FencedError             5  a writer of the catalog was taken for lost, and others do its work
    │   ├── LogTruncatedError       5  a partition's log no longer holds what was read of it
    │   ├── MisplacedBatchError     5  a batch was appended at another offset than its own
    │   ├── ObjectExistsError       5  a name in the storage is taken, and objects are never overwritten
    │   ├── OvertakenError          5  another writer has committed to the catalog since it was read
    │   ├── ProducerFencedError     5  another producer has taken over a transactional id
    │   ├── SequenceGapError        5  a broker expects another sequence number of a producer
    │   ├── TopicGoneError          5  a topic was deleted, or recreated under the same name
    │   └── UnsupportedFormatError  5  an unknown version, magic, codec or flag
    ├── ObjectNotFoundError         1  the storage has no object of that name
    ├── AccessDeniedError           1  credentials are missing, wrong, or do not allow it
    │   ├── ForbiddenError          1  the storage knows the user, and a rule or a lock forbids the operation
    │   └── FrozenObjectError       1  an object is in an archive class, and must be brought back before it can be read
    ├── StorageFullError            1  no space or quota is left
    ├── OutputError                 1  standard output cannot be written
    ├── EnvironmentMissingError     1  this machine lacks something (Java, a jar, a port)
    └── UnavailableError            1  a broker, a store or a process did not answer; trying again may help
        └── StoppedError            3  a signal, or the program that called it, has stopped it

An error names the operation, the object and the offsets it is about, and gives a hint on what to do next.
`maxbrod.cli` prints exactly these fields. None of them may contain a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INCOMPLETE: Final = 3
EXIT_CORRUPT: Final = 4
EXIT_REFUSED: Final = 5


def gravest(exit_codes: Iterable[int]) -> int:
    """The exit code of several outcomes: what failed beats what is refused, corrupt or incomplete, in that order."""
    codes = set(exit_codes)
    return EXIT_FAILED if EXIT_FAILED in codes else max(codes, default=EXIT_DONE)


class MaxbrodError(Exception):
    """The root. `str()` is one line for people; `as_dict()` is the same for programs."""

    exit_code: ClassVar[int] = EXIT_FAILED
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        operation: str | None = None,
        object_name: str | None = None,
        offset: int | None = None,
        position: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.operation = operation
        self.object_name = object_name
        self.offset = offset
        self.position = position
        self.hint = hint

    def __str__(self) -> str:
        return self.told_of()

    def told_of(self, *subjects: str) -> str:
        """The line without its object, if that is one of the subjects, which the reader has just seen."""
        name = self.object_name
        if name is not None and (name in subjects or _names(self.message, name)):
            name = None
        where = [
            text
            for text, value in (
                (f"in {name}", name),
                (f"at offset {self.offset}", self.offset),
                (f"at byte {self.position}", self.position),
            )
            if value is not None
        ]
        return _encodable(self.message if not where else f"{self.message} ({', '.join(where)})")

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own pickling loses keyword-only fields, and Spark pickles the errors of tasks for the driver.
        return _rebuild, (type(self), self.message, self._fields())

    def _fields(self) -> dict[str, Any]:
        return {
            "operation": self.operation,
            "object_name": self.object_name,
            "offset": self.offset,
            "position": self.position,
            "hint": self.hint,
        }

    def as_dict(self) -> dict[str, Any]:
        """The output of `--json`: the class, the exit code and every field that is set."""
        fields = {name: value for name, value in self._fields().items() if value is not None}
        return {
            "error": type(self).__name__,
            "message": _encodable(self.message),
            "exit_code": self.exit_code,
            "retryable": self.retryable,
            **{name: _encodable(value) if isinstance(value, str) else value for name, value in fields.items()},
        }


@contextmanager
def naming(object_name: str | None) -> Iterator[None]:
    """Set the object of errors that leave the block, unless they name one."""
    try:
        yield
    except MaxbrodError as error:
        error.object_name = error.object_name or object_name
        raise


def _names(message: str, name: str) -> bool:
    """True if a message names an object: the whole name, not a part of a longer one."""
    return name in message and re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w/-])", message) is not None


def _encodable(text: str) -> str:
    """Text that any output can encode: bytes of a file name that are not UTF-8 arrive here as lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _rebuild(cls: type[MaxbrodError], message: str, fields: dict[str, Any]) -> MaxbrodError:
    return cls(message, **fields)


def error_of(document: Mapping[str, Any]) -> MaxbrodError:
    """The error from the output of its `as_dict`, which another process may have written."""
    names = ("operation", "object_name", "offset", "position", "hint")
    kinds = {kind.__name__: kind for kind in _kinds(MaxbrodError)}
    kind = kinds.get(str(document.get("error")), MaxbrodError)
    return kind(str(document.get("message")), **{name: document.get(name) for name in names})


def _kinds(root: type[MaxbrodError]) -> Iterator[type[MaxbrodError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


class UsageError(MaxbrodError):
    """The command line, the configuration file or an argument is wrong."""

    exit_code = EXIT_USAGE


class NoArchiveError(UsageError):
    """Nothing is at the archive's URL. Objects of a copy may still arrive there."""


class IncompleteError(MaxbrodError):
    """Something requested is neither archived nor explained."""

    exit_code = EXIT_INCOMPLETE


class CorruptDataError(MaxbrodError):
    """Bytes are not what they claim to be: a checksum, a length or a count is wrong."""

    exit_code = EXIT_CORRUPT


class TruncatedDataError(CorruptDataError):
    """Bytes end within a structure. Normal at the end of a fetch response."""


class BatchLimitError(CorruptDataError):
    """Records unpack to more than is decoded at once. Kafka accepts such a batch, so this is no damage.

    It is the same for whoever needs the records and cannot have them, hence the base class.
    """

    exit_code = EXIT_REFUSED


class RefusedError(MaxbrodError):
    """Continuing could lose, mix or overwrite data, so nothing was changed."""

    exit_code = EXIT_REFUSED


class MisplacedBatchError(RefusedError):
    """A batch was appended at another offset than its own: somebody else writes to the partition."""


class SequenceGapError(RefusedError):
    """The broker expects another sequence number: another process sends the same records, or the log was changed."""


class ProducerFencedError(RefusedError):
    """Another producer has taken over the transactional id, or a transaction was open for longer than its timeout."""


class LogTruncatedError(RefusedError):
    """A partition's log was truncated, and what was read beyond that point is no longer in it."""


class TopicGoneError(RefusedError):
    """The topic was deleted, or deleted and created again. This incarnation can no longer be read."""


class ObjectExistsError(RefusedError):
    """The storage has another object of that name, which is not overwritten."""


class FencedError(RefusedError):
    """A writer of the catalog was taken for lost: others do its work, and none of its commits is accepted."""


class OvertakenError(RefusedError):
    """Another writer has committed to the catalog since it was read: plan again on the new version."""


class UnsupportedFormatError(RefusedError):
    """A version, magic, codec or flag that this release does not support: refused, never guessed."""


class ObjectNotFoundError(MaxbrodError):
    """The storage has no object of that name."""


class AccessDeniedError(MaxbrodError):
    """Credentials are missing, wrong or expired, or do not allow the operation."""


class ForbiddenError(AccessDeniedError):
    """The storage knows the user, and a permission, a policy or a lock forbids the operation on this object."""


class FrozenObjectError(AccessDeniedError):
    """An object is in an archive class of its store, and must be brought back before it can be read."""


class StorageFullError(MaxbrodError):
    """No space or quota is left. No partly written object remains."""


class OutputError(MaxbrodError):
    """Standard output is full or closed, or nobody reads it any more: what was printed is not all."""


class EnvironmentMissingError(MaxbrodError):
    """This machine lacks something that the command needs. The hint says how to get it."""


class UnavailableError(MaxbrodError):
    """A broker, a store or a process did not answer in time."""

    retryable = True


class StoppedError(UnavailableError):
    """Stopped on request before it was complete. What was committed by then stays; the same command does the rest."""

    exit_code = EXIT_INCOMPLETE

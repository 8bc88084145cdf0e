"""The commits that consumer groups make on a mount: a file that is durable before a commit is answered.

    STATE/lock       held by the process that serves the mount
    STATE/commits    one line per write: its CRC32C in 8 hexadecimal digits, a space, JSON

The first line names the mount and its archives. Every other line is a list of records: what a topic is, the offsets
that a group committed, whether a group has members. All commits that wait share the next line and its fsync. A line is
whole or it counts for nothing: a torn one at the end was never answered, and is cut off; one before others is damage,
and refused. When most of the file is out of date, it is written anew and renamed into place.

Offsets are kept by incarnation of a topic, not by name: a mount that renames topics, or shows another incarnation under
a name, starts with the right ones.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeAlias
from uuid import uuid4

import google_crc32c

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError, MaxbrodError, RefusedError, UnsupportedFormatError, UsageError
from maxbrod.model import now_ms, topic_id_text
from maxbrod.mount.positions import GroupTopic, HeldOffset, PositionKey
from maxbrod.private_files import make_private, opened, state_path
from maxbrod.storage.beneath import sync_folder

LOCK: Final = "lock"
COMMITS: Final = "commits"
_BUILDING: Final = "commits.new"
_FORMAT: Final = "maxbrod.mount"
_VERSION: Final = 1
_CRC_LETTERS: Final = 8
_BEGIN: Final = re.compile(rb"[0-9a-f]{8} \[")
_LINE_BYTES: Final = 1 << 20
"""A line ends after this much; a single commit may be longer."""
_COMPACT_BYTES: Final = 8 << 20
"""A file below this is not written anew."""
_COMPACT_RATIO: Final = 4

Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalTopic:
    """The incarnation that offsets belong to."""

    source: str
    topic_id: str
    archive: str


@dataclass(frozen=True, slots=True)
class TopicCommit:
    """An offset of a partition; None deletes it."""

    topic: GroupTopic
    partition: int
    held: HeldOffset | None


@dataclass(slots=True)
class JournalState:
    """What a journal says."""

    mount_id: str
    archives: tuple[str, ...]
    topics: dict[str, JournalTopic] = field(default_factory=dict)
    """By `GroupTopic.key`."""
    offsets: dict[str, dict[PositionKey, HeldOffset | None]] = field(default_factory=dict)
    """By group. None: the group has deleted its offset, and the archive's does not count either."""
    committed_at_ms: dict[str, int] = field(default_factory=dict)
    with_members: set[str] = field(default_factory=set)
    """Groups that had members when this was written. Nothing follows from it once the mount has ended."""
    left: set[str] = field(default_factory=set)
    """Groups whose members have left, and that have committed nothing since."""
    _keys: dict[int, str] = field(default_factory=dict)
    """By number, as the file has them."""
    _numbers: dict[str, int] = field(default_factory=dict)

    def apply(self, record: Record) -> None:
        """KeyError, TypeError, ValueError: this is no record."""
        if "topic" in record:
            key, number = str(record["topic"]), int(record["number"])
            self._keys[number], self._numbers[key] = key, number
            self.topics[key] = JournalTopic(
                source=str(record["source"]), topic_id=str(record["topic_id"]), archive=str(record["archive"])
            )
            return
        group = str(record["group"])
        if "members" in record:
            gained, lost = (self.with_members, self.left) if record["members"] else (self.left, self.with_members)
            gained.add(group)
            lost.discard(group)
        if "offsets" in record:
            held = self.offsets.setdefault(group, {})
            for number, partition, *rest in record["offsets"]:
                offset = HeldOffset(offset=int(rest[0]), metadata=str(rest[1])) if rest else None
                held[self._keys[int(number)], int(partition)] = offset
            self.committed_at_ms[group] = int(record["at_ms"])
            self.left.discard(group)

    def commit_records(self, group: str, commits: Sequence[TopicCommit], at_ms: int) -> list[Record]:
        """The records of a commit, with those of topics that the file does not know. Numbers them at once."""
        records: list[Record] = []
        rows: list[list[Any]] = []
        for commit in commits:
            topic, held = commit.topic, commit.held
            number = self._numbers.get(topic.key)
            if number is None:
                number = len(self._keys)
                about = JournalTopic(source=topic.source, topic_id=topic.topic_id, archive=topic.archive)
                records.append({"topic": topic.key, "number": number, **asdict(about)})
                self.apply(records[-1])
            rows.append([number, commit.partition, *(() if held is None else (held.offset, held.metadata))])
        return [*records, {"group": group, "at_ms": at_ms, "offsets": rows}]

    def lines(self) -> Iterator[bytes]:
        """A file that says the same, and no more."""
        yield _line({_FORMAT: _VERSION, "mount_id": self.mount_id, "archives": list(self.archives)})
        records: list[Record] = [
            {"topic": key, "number": number, **asdict(self.topics[key])} for number, key in self._keys.items()
        ]
        size = 0
        for group, held in self.offsets.items():
            rows = [
                [self._numbers[key], partition, *(() if found is None else (found.offset, found.metadata))]
                for (key, partition), found in held.items()
            ]
            records.append({"group": group, "at_ms": self.committed_at_ms[group], "offsets": rows})
            size += 64 * len(rows)
            if size > _LINE_BYTES:
                yield _line(records)
                records, size = [], 0
        records += [{"group": group, "members": True} for group in self.with_members]
        yield _line(records)


def default_state(archives: Iterable[str]) -> Path:
    """Where a mount of these archives keeps its state unless told otherwise: in the user's state folder."""
    digest = hashlib.sha256("\n".join(sorted(archives)).encode()).hexdigest()
    return state_path() / "mounts" / digest[:16]


def read_journal(folder: Path) -> JournalState:
    """What the journal in a state folder says, also while a mount writes to it."""
    path = folder / COMMITS
    try:
        with opened(path, create=False) as descriptor:
            return _read(_read_all(descriptor), path)[0]
    except FileNotFoundError:
        raise UsageError(
            "this folder holds no journal of a mount",
            object_name=str(folder),
            hint="give the folder that 'maxbrod mount' names as its state",
        ) from None
    except OSError as error:
        raise UsageError(f"the journal cannot be read: {error.strerror}", object_name=str(path)) from None


def is_mounted(folder: Path) -> bool:
    """True if a process serves the mount of this state folder now."""
    try:
        with opened(folder / LOCK, create=False) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


class JournalFailedError(MaxbrodError):
    """A commit could not be made durable."""


@dataclass(slots=True)
class _Waiting:
    records: list[Record]
    done: asyncio.Future[None] | None


class CommitJournal:
    """The journal of the mount that this process serves. Open it with `open`; `close` ends it."""

    def __init__(self, folder: Path, state: JournalState, *, lock: ExitStack, file: ExitStack, descriptor: int) -> None:
        self.folder, self.state = folder, state
        self.writes = 0
        """Lines written, each with its own fsync."""
        self._lock, self._file, self._descriptor = lock, file, descriptor
        self._size = self._compacted_size = os.lseek(descriptor, 0, os.SEEK_END)
        self._broken: str | None = None
        self._owed: list[Record] = []
        """Topics that were numbered, and whose line could not be written."""
        self._queue: deque[_Waiting] = deque()
        self._flush: asyncio.Task[None] | None = None

    @classmethod
    def open(cls, folder: Path, archives: Iterable[str]) -> Self:
        """RefusedError if another process serves this mount, or if the folder belongs to other archives."""
        with ExitStack() as lock, ExitStack() as file:
            make_private(folder)
            _take_lock(folder, lock)
            path, names = folder / COMMITS, tuple(sorted(archives))
            (folder / _BUILDING).unlink(missing_ok=True)
            if not path.exists():
                with ExitStack() as new:
                    _build(folder, JournalState(topic_id_text(uuid4()), names).lines(), new)
                    (folder / _BUILDING).rename(path)
                sync_folder(folder)
            descriptor = file.enter_context(opened(path, create=True))
            data = _read_all(descriptor)
            state, size = _read(data, path)
            if state.archives != names:
                raise RefusedError(
                    f"this state belongs to a mount of {', '.join(state.archives)}, not of {', '.join(names)}",
                    object_name=str(folder),
                    hint="give another --state, or the archives that it belongs to",
                )
            if size < len(data):
                os.ftruncate(descriptor, size)
            if state.with_members:
                # The members of a mount that was killed are gone.
                records = [{"group": group, "members": False} for group in sorted(state.with_members)]
                os.lseek(descriptor, 0, os.SEEK_END)
                _write_all(descriptor, _line(records))
                for record in records:
                    state.apply(record)
            os.fsync(descriptor)
            return cls(folder, state, lock=lock.pop_all(), file=file.pop_all(), descriptor=descriptor)

    @property
    def mount_id(self) -> str:
        """A cluster id that stays the same for this state folder."""
        return self.state.mount_id

    async def commit(self, group: str, commits: Sequence[TopicCommit]) -> None:
        """Return when the commit is durable. JournalFailedError if it is not."""
        done = asyncio.get_running_loop().create_future()
        self._enqueue(_Waiting(self.state.commit_records(group, commits, now_ms()), done))
        await done

    def mark(self, group: str, *, members: bool) -> None:
        """Note whether a group has members. Nobody waits for that to be durable: it is about now."""
        self._enqueue(_Waiting([{"group": group, "members": members}], None))

    async def close(self) -> None:
        """Write what waits, then let go of the state folder."""
        if self._flush is not None:
            await self._flush
        self._file.close()
        self._lock.close()

    def _enqueue(self, waiting: _Waiting) -> None:
        self._queue.append(waiting)
        if self._flush is None or self._flush.done():
            self._flush = asyncio.get_running_loop().create_task(self._write_queue())

    async def _write_queue(self) -> None:
        while self._queue:
            taken, records = self._take()
            records = [*self._owed, *records]
            try:
                await asyncio.to_thread(self._write, _line(records))
            except OSError as error:
                self._owed = [record for record in records if "topic" in record]
                for waiting in taken:
                    _settle(waiting, JournalFailedError(f"the journal cannot be written: {error.strerror}"))
                continue
            self._owed = []
            for record in records:
                self.state.apply(record)
            for waiting in taken:
                _settle(waiting, None)
            if self._size > max(_COMPACT_BYTES, _COMPACT_RATIO * self._compacted_size):
                self._compacted_size = self._size
                # A failure leaves the file as it was, which is only too long: the next attempt is when it has grown.
                with suppress(OSError):
                    await asyncio.to_thread(self._compact)

    def _take(self) -> tuple[list[_Waiting], list[Record]]:
        """What goes into the next line."""
        taken: list[_Waiting] = []
        records: list[Record] = []
        rows = 0
        while self._queue and rows * 64 < _LINE_BYTES:
            taken.append(self._queue.popleft())
            records += taken[-1].records
            rows += sum(1 + len(record.get("offsets", ())) for record in taken[-1].records)
        return taken, records

    def _write(self, line: bytes) -> None:
        if self._broken is not None:
            raise OSError(0, self._broken)
        try:
            for start in range(0, len(line), _LINE_BYTES):
                _write_all(self._descriptor, line[start : start + _LINE_BYTES])
        except OSError:
            self._cut_back()
            raise
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            # The kernel may have dropped what it could not write, and would not say so again.
            self._broken = f"{error.strerror}; restart the mount"
            raise
        self._size += len(line)
        self.writes += 1

    def _cut_back(self) -> None:
        """Remove a partial line: the next one must begin at the end of a whole one."""
        try:
            os.ftruncate(self._descriptor, self._size)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self._broken = f"{error.strerror}; restart the mount"

    def _compact(self) -> None:
        with ExitStack() as new:
            descriptor = _build(self.folder, self.state.lines(), new)
            (self.folder / _BUILDING).replace(self.folder / COMMITS)
            self._file.close()
            self._file, self._descriptor = new.pop_all(), descriptor
        self._size = self._compacted_size = os.lseek(descriptor, 0, os.SEEK_END)
        try:
            sync_folder(self.folder)
        except OSError as error:
            # After a crash the older file could be back, without what is written from now on.
            self._broken = f"{error.strerror}; restart the mount"


def _settle(waiting: _Waiting, error: MaxbrodError | None) -> None:
    if waiting.done is None or waiting.done.done():
        return
    if error is None:
        waiting.done.set_result(None)
    else:
        waiting.done.set_exception(error)


def _take_lock(folder: Path, resources: ExitStack) -> None:
    descriptor = resources.enter_context(opened(folder / LOCK, create=True))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RefusedError(
            "another process serves a mount with this state",
            object_name=str(folder),
            hint="stop it, or give this mount a --state of its own",
        ) from None


def _build(folder: Path, lines: Iterable[bytes], resources: ExitStack) -> int:
    """Write a whole file beside the journal, durably. The descriptor stays open."""
    building = folder / _BUILDING
    building.unlink(missing_ok=True)
    descriptor = resources.enter_context(opened(building, create=True))
    for line in lines:
        _write_all(descriptor, line)
    os.fsync(descriptor)
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_all(descriptor: int) -> bytes:
    pieces = []
    while piece := os.read(descriptor, 1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def _line(document: object) -> bytes:
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return b"%08x %s\n" % (google_crc32c.value(text), text)


def _read(data: bytes, path: Path) -> tuple[JournalState, int]:
    """The state, and how many bytes are whole lines. CorruptDataError if a line before others is damaged."""
    first, size = _document(data, 0)
    if first is None:
        raise CorruptDataError("the first line of the journal is damaged", object_name=str(path), position=0)
    state = _header(first, path)
    while size < len(data):
        records, after = _document(data, size)
        if records is None:
            if any(_document(data, start)[0] is not None for start in _starts(data, size)):
                what = "a line of the journal is damaged, and others follow it"
                hint = "restore the file from a copy; commits after this line cannot be told from it"
                raise CorruptDataError(what, object_name=str(path), position=size, hint=hint)
            break
        try:
            for record in records:
                state.apply(record)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            what = f"a line of the journal has other fields than it should: {error!r}"
            raise CorruptDataError(what, object_name=str(path), position=size) from None
        size = after
    return state, size


def _starts(data: bytes, damaged: int) -> Iterator[int]:
    """Where lines may begin after a damaged one, whose own end may be what is damaged."""
    return (found.start() for found in _BEGIN.finditer(data, damaged + 1))


def _document(data: bytes, start: int) -> tuple[Any, int]:
    """The JSON of the line that begins here, and where the next one begins. None: it is not whole."""
    end = data.find(b"\n", start)
    text = data[start + _CRC_LETTERS + 1 : end]
    if end < 0 or data[start : start + _CRC_LETTERS + 1] != b"%08x " % google_crc32c.value(text):
        return None, start
    try:
        return strict_json.parse(text), end + 1
    except ValueError:
        return None, start


def _header(document: object, path: Path) -> JournalState:
    version = document.get(_FORMAT) if isinstance(document, dict) else None
    if version != _VERSION or not isinstance(document, dict):
        raise UnsupportedFormatError(
            f"the journal of the mount has version {version!r}",
            object_name=str(path),
            hint=f"this release knows version {_VERSION}",
        )
    return JournalState(str(document["mount_id"]), tuple(map(str, document["archives"])))

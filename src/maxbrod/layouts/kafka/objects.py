"""The objects that one task writes: created when their first batch arrives, then committed or aborted."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from maxbrod.layouts.kafka.contents import Contents, Entry, encode_contents, has_contents
from maxbrod.layouts.kafka.described_batches import DescribedBatches, SliceTally
from maxbrod.layouts.kafka.format import Slice, is_framed, pack_path
from maxbrod.layouts.kafka.frames import FrameEncoder, SliceDigest
from maxbrod.model import now_ms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.model import AbortedTransaction
    from maxbrod.storage.interface import Storage, Writer

PACK_BYTES_MAX: Final = 1 << 30
"""A pack of this size takes no further slice."""


class SliceOwner(Protocol):
    def make_way(self) -> None:
        """End the open slice of the pack, if there is one."""


@dataclass(frozen=True, slots=True)
class OpenObject:
    path: str
    writer: Writer
    entries: list[Entry] = field(default_factory=list)
    """The slices written so far, for the table of contents."""

    def finish(self, run_id: str, *, level: int = 0) -> None:
        """Write the table of contents, if an object of this name has one. Nothing may be written after it."""
        if self.entries and has_contents(self.path):
            contents = Contents(run_id=run_id, written_at=now_ms(), entries=tuple(self.entries), level=level)
            end = encode_contents(contents, framed=is_framed(self.path))
            self.writer.write(np.frombuffer(end, np.uint8))


class Objects:
    """All open objects of a task."""

    def __init__(self, storage: Storage, run_id: str) -> None:
        self._storage = storage
        self._run_id = run_id
        self._open: list[OpenObject] = []
        self._packs: dict[bool, OpenObject] = {}
        self._commit: _Commit | None = None
        self._owners: dict[bool, SliceOwner] = {}

    def create(self, path: str) -> OpenObject:
        opened = OpenObject(path, self._storage.create(path))
        self._open.append(opened)
        return opened

    def pack(self, *, framed: bool, owner: SliceOwner) -> OpenObject:
        """The pack for the next slice; a task has at most one of each kind at a time.

        Slices are contiguous: the previous owner's open slice is ended first.
        """
        before = self._owners.get(framed, owner)
        if before is not owner:
            before.make_way()
        self._owners[framed] = owner
        pack = self._packs.get(framed)
        if pack is not None and pack.writer.size >= PACK_BYTES_MAX:
            self.commit(pack)
            pack = None
        if pack is None:
            pack = self._packs[framed] = self.create(pack_path(run_id=self._run_id, framed=framed))
        return pack

    def commit(self, opened: OpenObject) -> None:
        """Make an object durable in the background, one at a time; the next commit raises the error of this one."""
        self._settle()
        opened.finish(self._run_id)
        self._open.remove(opened)
        self._commit = _Commit(opened)
        self._commit.start()

    def commit_all(self) -> None:
        """When this returns, all objects are durable. If one fails, the caller aborts the others."""
        while self._open:
            self.commit(self._open[0])
        self._settle()

    def abort_all(self) -> None:
        with suppress(Exception):
            self._settle()
        while self._open:
            self._open.pop().writer.abort()

    def _settle(self) -> None:
        commit, self._commit = self._commit, None
        if commit is not None:
            commit.settle()


class _Commit(threading.Thread):
    def __init__(self, opened: OpenObject) -> None:
        super().__init__(name="commit", daemon=True)
        self._opened = opened
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._opened.writer.commit()
        except BaseException as error:  # noqa: BLE001 - raised by `settle`
            self._error = error

    def settle(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error


class SliceWriter:
    """Appends one slice to `out`, and collects its digest and what the catalog records of it.

    While the slice is open, nothing else may be written to `out`.
    """

    def __init__(self, out: OpenObject, level: int | None) -> None:
        """`level` is the zstd level of a log in frames; None: no frames."""
        self.out = out
        self._position = out.writer.size
        self._frames = None if level is None else FrameEncoder(level)
        self._digest = SliceDigest()
        self.tally = SliceTally()

    def add(self, batches: DescribedBatches) -> None:
        self.tally.add(batches)
        if self._frames is None:
            self._write(batches.log)
            return
        for frame in self._frames.encode(batches.log):
            self._write(frame)

    def finish(self, aborted: tuple[AbortedTransaction, ...]) -> Slice:
        if self._frames is not None:
            for frame in self._frames.finish():
                self._write(frame)
        return self.tally.as_slice(
            path=self.out.path,
            position=self._position,
            size=self.out.writer.size - self._position,
            aborted=aborted,
            digest=str(self._digest),
        )

    def _write(self, data: NDArray[np.uint8]) -> None:
        self.out.writer.write(data)
        self._digest.add(data)

"""The storage of an encrypted archive: seals what is written, opens what is read, and shows plain sizes.

It is laid over the real storage when an archive is opened, so that nothing above knows of encryption. The folder
`keys/` is its own: it is not sealed, and nobody above sees or uses it. An object without a seal is refused.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Final

from maxbrod.config import EncryptionConfig
from maxbrod.errors import (
    CorruptDataError,
    MaxbrodError,
    ObjectExistsError,
    ObjectNotFoundError,
    RefusedError,
    UsageError,
    naming,
)
from maxbrod.storage.composed import OWN_FOLDER
from maxbrod.storage.failures import too_short
from maxbrod.storage.interface import KEYS, SEAL, ByteRange, HeldObject, ObjectInfo, Storage, Writer
from maxbrod.storage.sealing.format import (
    HEAD_BYTES,
    PREFIX_BYTES,
    SEALED_BYTES_MIN,
    ChunkCipher,
    Chunks,
    ChunkSealer,
    DataKey,
    SealHead,
    make_data_key,
    open_data_key,
    parse_head,
)
from maxbrod.storage.sealing.hidden_names import HiddenNames
from maxbrod.storage.sealing.identity import locked, recipients_of, unlock
from maxbrod.storage.sealing.rings import OpenRing, Ring, Sealed, create_ring, decode_ring, encode_ring, ring_path
from maxbrod.storage.urls import check_folder, check_name

if TYPE_CHECKING:
    from collections.abc import Buffer

_OWN: Final = f"{KEYS}/"
_RECORDS: Final = ("segments/", "packs/")
"""The folders whose objects hold records. A public key opens all others."""
_LOOK_EVERY_S: Final = 60.0
"""A writer that runs for long takes a new epoch within this time."""
_HEADS_MAX: Final = 4096
_PIECE_BYTES: Final = 4 << 20
_OPENED_MAX: Final = 16
_opened: OrderedDict[tuple[bytes, EncryptionConfig], OpenRing] = OrderedDict()
_opened_lock: Final = Lock()


def find_ring(storage: Storage) -> Ring | None:
    """The newest ring; None: the archive is not encrypted."""
    found = max(_documents(storage), default=None)
    return None if found is None else read_ring(storage, found)


def read_rings(storage: Storage) -> list[Ring]:
    """All rings, the oldest first: the history of the archive's keys."""
    return [read_ring(storage, path) for path in sorted(_documents(storage))]


def _documents(storage: Storage) -> list[str]:
    return [info.path for info in storage.list(KEYS) if info.path.endswith(".json")]


def without_key(storage: Storage) -> MaxbrodError:
    """The error for an encrypted archive that was opened without a key; it names those that open it."""
    ring = find_ring(storage)
    if ring is not None:
        return locked(ring, storage.url)
    return RefusedError(
        "this archive is encrypted, and its keys are lost",
        operation="open the archive",
        object_name=storage.name_of(KEYS),
        hint="bring the folder back from a copy: 'maxbrod key import' takes what 'maxbrod key export' has written",
    )


def read_ring(storage: Storage, path: str) -> Ring:
    name = storage.name_of(path)
    ring = decode_ring(bytes(storage.get(path)), name=name)
    if ring.path != path:
        raise RefusedError("this document of keys has the name of another one", object_name=name)
    return ring


def open_ring(ring: Ring, options: EncryptionConfig, *, name: str) -> OpenRing:
    """As `unlock`, but asks a service and stretches a passphrase once in a process."""
    place = hashlib.sha256(encode_ring(ring)).digest(), options
    with _opened_lock:
        found = _opened.get(place)
    if found is None:
        found = unlock(ring, options, name=name)
        with _opened_lock:
            _opened[place] = found
            while len(_opened) > _OPENED_MAX:
                _opened.popitem(last=False)
    return found


def put_ring(storage: Storage, ring: Ring) -> None:
    """RefusedError: another change came first."""
    try:
        storage.at_hand().put(ring.path, encode_ring(ring))
    except ObjectExistsError:
        raise RefusedError(
            "somebody else has just changed the keys of this archive",
            object_name=storage.name_of(ring.path),
            hint="try again",
        ) from None


def encrypted_for(storage: Storage, options: EncryptionConfig) -> Storage:
    """The storage of a new archive that only what is given opens. Whoever is first decides for all."""
    base = storage.base if isinstance(storage, SealedStorage) else storage
    ring = find_ring(base)
    if ring is None:
        recipients = recipients_of(options)
        if not recipients:
            raise UsageError("no key is given", object_name=storage.url)
        with suppress(RefusedError):
            put_ring(base, create_ring(recipients))
        ring = find_ring(base)
        if ring is None:
            raise RefusedError("the archive's keys were written and are not there", object_name=storage.url)
    return SealedStorage(base, Keyring(base, ring, options))


class Keyring:
    """The keys of an archive while it is used. Thread-safe."""

    def __init__(self, base: Storage, ring: Ring, options: EncryptionConfig) -> None:
        self._base, self._options = base, options
        self._open = open_ring(ring, options, name=base.name_of(ring.path))
        self._looked_at = time.monotonic()
        self._data_keys: dict[Sealed, DataKey] = {}
        self._found: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()

    @property
    def opened(self) -> OpenRing:
        return self._open

    def data_key(self, kind: Sealed) -> DataKey:
        """The key for new objects of a class."""
        with self._lock:
            if time.monotonic() - self._looked_at > _LOOK_EVERY_S:
                self._look()
            if kind not in self._data_keys:
                epoch = self._open.ring.epoch
                self._data_keys[kind] = make_data_key(
                    kind=kind, epoch=bytes.fromhex(epoch.id), public=epoch.public(kind)
                )
            return self._data_keys[kind]

    def _look(self) -> None:
        """Take the newest ring. Whoever was removed from it must stop writing, too."""
        self._looked_at = time.monotonic()
        ring = self._open.ring
        while True:
            try:
                ring = read_ring(self._base, ring_path(ring.number + 1))
            except ObjectNotFoundError:
                break
        if ring.number != self._open.ring.number:
            self._open = open_ring(ring, self._options, name=self._base.name_of(ring.path))
            self._data_keys.clear()

    def key_of(self, head: SealHead) -> bytes:
        """The data key of an object."""
        with self._lock:
            found = self._found.get(head.prefix)
            if found is None:
                if head.epoch.hex() not in self._open.catalog:
                    self._look()
                found = open_data_key(head, self._open.private(head.kind, head.epoch))
                self._found[head.prefix] = found
                while len(self._found) > _HEADS_MAX:
                    self._found.popitem(last=False)
            return found


class SealedStorage(Storage):
    encrypted = True

    def __init__(self, base: Storage, keyring: Keyring) -> None:
        super().__init__(base.url)
        self.base, self.keyring = base, keyring
        self.distant, self.creates_only = base.distant, base.creates_only
        self._heads: OrderedDict[str, tuple[SealHead, int]] = OrderedDict()
        self._lock = Lock()
        self._names = HiddenNames(keyring.opened.names)

    def name_of(self, path: str) -> str:
        return self.base.name_of(self._names.hide(path))

    def recipients(self) -> tuple[str, ...]:
        return tuple(recipient.label for recipient in self.keyring.opened.ring.recipients)

    def demand_records(self) -> None:
        opened = self.keyring.opened
        with naming(self.url):
            opened.private(Sealed.RECORDS, bytes.fromhex(opened.ring.epoch.id))

    def at_hand(self) -> Storage:
        return SealedStorage(self.base.at_hand(), self.keyring)

    def put(self, path: str, data: Buffer) -> None:
        self.base.put(self._place(path), self._sealed(path, data))

    def replace(self, path: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        self.base.replace(self._place(path), self._sealed(path, data), metadata=metadata)

    def create(self, path: str) -> Writer:
        cipher = self._fresh(path)
        return _SealedWriter(self.base.create(self._place(path)), ChunkSealer(cipher))

    def get(self, path: str, *, size: int | None = None) -> memoryview:
        sealed = self.base.get(self._place(path))
        if path.startswith(f"{OWN_FOLDER}/") and bytes(sealed[: len(SEAL)]) != SEAL:
            # A schedule may be there before the archive, and is no secret.
            plain = sealed
        else:
            with naming(self.name_of(path)):
                head = parse_head(sealed)
                cipher = ChunkCipher(self.keyring.key_of(head), head, path)
                plain = cipher.open_chunks(0, sealed[HEAD_BYTES:], to_end=True)
        if size is not None and len(plain) != size:
            raise too_short("get", self.name_of(path), there=len(plain), expected=size)
        return plain

    def get_stored(self, path: str) -> memoryview:
        return self.base.get(self._place(path))

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        known = _not_keys(path) in self._heads
        with naming(self.name_of(path)):
            try:
                return self._read(path, ranges)
            except (CorruptDataError, ObjectNotFoundError):
                # Objects of ours never change; but what one remembers may be of another object of that name.
                with self._lock:
                    self._heads.pop(path, None)
                if not known:
                    raise
                return self._read(path, ranges)

    def _read(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        head, size = self._head(path)
        chunks = head.chunks
        plain = chunks.plain_size(size)
        end = max((wanted.start + wanted.size for wanted in ranges), default=0)
        if end > plain:
            raise too_short("get_ranges", self.name_of(path), there=plain, expected=end)
        spans = [_chunks_of(wanted, chunks) for wanted in ranges]
        places = [_place_of(span, chunks, size) for span in spans]
        answers = self.base.get_ranges(self._place(path), places)
        cipher = ChunkCipher(self.keyring.key_of(head), head, path)
        found = []
        for wanted, span, place, answer in zip(ranges, spans, places, answers, strict=True):
            if not wanted.size:
                found.append(memoryview(b""))
                continue
            opened = cipher.open_chunks(span.start, answer, to_end=place.start + place.size == size)
            at = wanted.start - chunks.plain_start(span.start)
            found.append(opened[at : at + wanted.size])
        return found

    def head(self, path: str) -> ObjectInfo:
        return self._shown(self.base.head(self._place(path)))

    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        listed = self.base.list(self._names.hide(check_folder(folder)))
        shown = (self._shown(info) for info in listed if not info.path.startswith(_OWN))
        return iter(sorted(shown, key=lambda info: info.path.encode()))

    def delete(self, paths: Iterable[str]) -> Sequence[HeldObject]:
        return [self._held(item) for item in self.base.delete([self._place(path) for path in paths])]

    def held_back(self) -> Sequence[HeldObject]:
        return [self._held(item) for item in self.base.held_back()]

    def stored_name(self, path: str) -> str:
        return self.base.stored_name(self._place(path))

    def _held(self, item: HeldObject) -> HeldObject:
        return replace(item, path=self._names.show(item.path))

    def _place(self, path: str) -> str:
        return self._names.hide(_not_keys(path))

    def _shown(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, path=self._names.show(info.path), size=Chunks().plain_size(info.size))

    def _fresh(self, path: str) -> ChunkCipher:
        return ChunkCipher.fresh(self.keyring.data_key(class_of(_not_keys(path))), path)

    def _sealed(self, path: str, data: Buffer) -> bytearray:
        sealer = ChunkSealer(self._fresh(path))
        sealed = sealer.seal(memoryview(data).cast("B"))
        sealed += sealer.finish()
        return sealed

    def _head(self, path: str) -> tuple[SealHead, int]:
        """The head and the sealed size of an object. Two requests the first time."""
        with self._lock:
            found = self._heads.get(path)
        if found is None:
            place = self._place(path)
            size = self.base.head(place).size
            found = parse_head(self.base.get_range(place, 0, min(HEAD_BYTES, size))), size
            if size < SEALED_BYTES_MIN:
                raise too_short("get_ranges", self.name_of(path), there=size, expected=SEALED_BYTES_MIN)
            with self._lock:
                self._heads[path] = found
                while len(self._heads) > _HEADS_MAX:
                    self._heads.popitem(last=False)
        return found


def class_of(path: str) -> Sealed:
    return Sealed.RECORDS if path.startswith(_RECORDS) else Sealed.CATALOG


def _not_keys(path: str) -> str:
    """The same name. UsageError: it is one of the keys, or no name."""
    if check_name(path).startswith(_OWN):
        raise UsageError(f"{KEYS}/ is for the keys of the archive", object_name=path)
    return path


def _chunks_of(wanted: ByteRange, chunks: Chunks) -> range:
    """The chunks that have a range."""
    if not wanted.size:
        return range(0)
    return range(chunks.number_at(wanted.start), chunks.number_at(wanted.start + wanted.size - 1) + 1)


def _place_of(span: range, chunks: Chunks, size: int) -> ByteRange:
    if not span:
        return ByteRange(start=0, size=0)
    start = chunks.sealed_start(span.start)
    return ByteRange(start=start, size=min(size, PREFIX_BYTES + span.stop * chunks.size) - start)


class _SealedWriter(Writer):
    def __init__(self, base: Writer, sealer: ChunkSealer) -> None:
        self._base, self._sealer = base, sealer

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE_BYTES):
            sealed = self._sealer.seal(view[start : start + _PIECE_BYTES])
            if sealed:
                self._base.write(sealed)
        self.size += len(view)

    def commit(self) -> None:
        try:
            self._base.write(self._sealer.finish())
        except BaseException:
            self._base.abort()
            raise
        self._base.commit()

    def abort(self) -> None:
        self._base.abort()

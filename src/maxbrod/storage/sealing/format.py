"""A sealed object: the bytes that a store holds of an encrypted archive. Pure.

```
prefix   96   magic "MXBS" · version 1 · log2 of the chunk size · class · 0 · epoch (8) · sealed data key (80)
stream        header: 40 · salt (32) · nonce prefix (7); then chunks, each followed by its tag (16)
```

The stream is that of Tink's AES-GCM-HKDF streaming AEAD (AES-256, HKDF-SHA256). Its input key is the data key; its
associated data are the prefix and the object's name, so that no object can stand in for another. The nonce of a chunk
is the nonce prefix, its number and whether it is the last: chunks cannot be reordered, dropped or added.

The data key is sealed by HPKE (X25519, HKDF-SHA256, AES-256-GCM) for a key pair of the archive, of which writers need
the public half alone. A writer uses one data key for many objects; the salt gives each object a key of its own.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError
from maxbrod.storage.interface import SEAL

if TYPE_CHECKING:
    from collections.abc import Buffer

    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

VERSION: Final = 1
CHUNK_LOG2: Final = 16
"""Chunks have 64 KiB with their tags. A range read decrypts whole chunks; sizes are told without reading."""
KEY_BYTES: Final = 32
EPOCH_BYTES: Final = 8

_FIXED: Final = struct.Struct(">4sBBBB8s")
_SEALED_KEY_BYTES: Final = 80
PREFIX_BYTES: Final = _FIXED.size + _SEALED_KEY_BYTES
_NONCE_PREFIX_BYTES: Final = 7
_HEADER_BYTES: Final = 1 + KEY_BYTES + _NONCE_PREFIX_BYTES
HEAD_BYTES: Final = PREFIX_BYTES + _HEADER_BYTES
"""The prefix and the stream's header: what a reader needs before the first chunk."""
TAG_BYTES: Final = 16
SEALED_BYTES_MIN: Final = HEAD_BYTES + TAG_BYTES
_COUNTER_MAX: Final = 2**32
_HINT: Final = "bring the object back from a copy, or take it out with 'maxbrod repair'"

SUITE: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """How the plain bytes of an object lie in its chunks."""

    size: int = 1 << CHUNK_LOG2
    """The bytes of a sealed chunk, with its tag."""

    @property
    def first_plain(self) -> int:
        """The plain bytes of the first chunk, which shares its place with the stream's header."""
        return self.size - _HEADER_BYTES - TAG_BYTES

    @property
    def plain(self) -> int:
        """The plain bytes of any other chunk."""
        return self.size - TAG_BYTES

    def plain_size(self, sealed: int) -> int:
        """The plain bytes of an object that has so many sealed ones; 0 if it is too short to be one."""
        stream = sealed - PREFIX_BYTES
        chunks = max(1, -(-stream // self.size))
        return max(0, stream - _HEADER_BYTES - chunks * TAG_BYTES)

    def number_at(self, position: int) -> int:
        """The number of the chunk that has this plain byte."""
        return 0 if position < self.first_plain else 1 + (position - self.first_plain) // self.plain

    def plain_start(self, number: int) -> int:
        return 0 if number == 0 else self.first_plain + (number - 1) * self.plain

    def sealed_start(self, number: int) -> int:
        """The position of a chunk in the object."""
        return HEAD_BYTES if number == 0 else PREFIX_BYTES + number * self.size


@dataclass(frozen=True)
class SealHead:
    """The first bytes of a sealed object, parsed: whose data key, and the stream's salt and nonce prefix."""

    data: bytes

    @property
    def prefix(self) -> bytes:
        return self.data[:PREFIX_BYTES]

    @property
    def chunks(self) -> Chunks:
        return Chunks(size=1 << self.data[5])

    @property
    def kind(self) -> int:
        return self.data[6]

    @property
    def epoch(self) -> bytes:
        return self.data[8 : _FIXED.size]

    @property
    def fixed(self) -> bytes:
        """What the data key is bound to."""
        return self.data[: _FIXED.size]

    @property
    def sealed_key(self) -> bytes:
        return self.data[_FIXED.size : PREFIX_BYTES]


def parse_head(data: Buffer) -> SealHead:
    """CorruptDataError: these are not the first bytes of a sealed object."""
    head = bytes(memoryview(data)[:HEAD_BYTES])
    if head[: len(SEAL)] != SEAL[: len(head)]:
        raise CorruptDataError(
            "the object is not encrypted, and all objects of this archive are: somebody else wrote it", hint=_HINT
        )
    if len(head) < HEAD_BYTES:
        raise TruncatedDataError("the object ends within its prefix", hint=_HINT)
    _, version, log2, _, reserved, _ = _FIXED.unpack_from(head)
    if version != VERSION or reserved or log2 != CHUNK_LOG2 or head[PREFIX_BYTES] != _HEADER_BYTES:
        raise UnsupportedFormatError(f"the object is sealed in another way (version {version})")
    return SealHead(head)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKey:
    """A key that a writer has made for one class of objects, and the prefix of objects that use it."""

    key: bytes
    prefix: bytes


def make_data_key(*, kind: int, epoch: bytes, public: X25519PublicKey) -> DataKey:
    key = os.urandom(KEY_BYTES)
    fixed = _FIXED.pack(SEAL, VERSION, CHUNK_LOG2, kind, 0, epoch)
    return DataKey(key=key, prefix=fixed + SUITE.encrypt(key, public, fixed))


def open_data_key(head: SealHead, private: X25519PrivateKey) -> bytes:
    """CorruptDataError: the data key was not sealed for this private key."""
    try:
        return SUITE.decrypt(head.sealed_key, private, head.fixed)
    except (InvalidTag, ValueError):
        raise CorruptDataError("the key in the object's prefix cannot be opened: it was altered", hint=_HINT) from None


class ChunkCipher:
    """Seals or opens the chunks of one object."""

    def __init__(self, key: bytes, head: SealHead, name: str) -> None:
        self._head, self._key, self._name = head, key, name
        self.chunks: Final = head.chunks

    @classmethod
    def fresh(cls, data_key: DataKey, name: str) -> ChunkCipher:
        """For a new object."""
        random = os.urandom(KEY_BYTES + _NONCE_PREFIX_BYTES)
        return cls(data_key.key, SealHead(data_key.prefix + bytes([_HEADER_BYTES]) + random), name)

    @property
    def head(self) -> bytes:
        return self._head.data

    @cached_property
    def _aead(self) -> AESGCM:
        salt = self._head.data[PREFIX_BYTES + 1 : PREFIX_BYTES + 1 + KEY_BYTES]
        info = self._head.prefix + self._name.encode()
        return AESGCM(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(self._key))

    def _nonce(self, number: int, *, last: bool) -> bytes:
        if number >= _COUNTER_MAX:
            raise ValueError("the object has too many chunks")
        return self._head.data[-_NONCE_PREFIX_BYTES:] + number.to_bytes(4) + bytes([last])

    def seal_into(self, number: int, plain: bytes | memoryview, room: memoryview, *, last: bool) -> None:
        """Seal a chunk into a buffer that is longer by the tag."""
        self._aead.encrypt_into(self._nonce(number, last=last), plain, None, room)

    def open_into(self, number: int, sealed: memoryview, room: memoryview, *, last: bool) -> None:
        """CorruptDataError: the chunk is not the one that was sealed here; `position` is its first plain byte."""
        try:
            self._aead.decrypt_into(self._nonce(number, last=last), sealed, None, room)
        except InvalidTag:
            raise CorruptDataError(
                f"chunk {number} of the object was altered, or the object was cut off or exchanged for another",
                position=self.chunks.plain_start(number),
                hint=_HINT,
            ) from None

    def open_chunks(self, first: int, sealed: memoryview, *, to_end: bool) -> memoryview:
        """The plain bytes of successive chunks. `to_end`: the last of them is the last of the object."""
        chunks, room = self.chunks, memoryview(bytearray(len(sealed)))
        number, at, written = first, 0, 0
        while True:
            size = chunks.size - _HEADER_BYTES if number == 0 else chunks.size
            chunk = sealed[at : at + size]
            if len(chunk) < TAG_BYTES or (len(chunk) == TAG_BYTES and number):
                raise TruncatedDataError(f"the object ends within chunk {number}", hint=_HINT)
            at += len(chunk)
            end = at == len(sealed)
            plain = len(chunk) - TAG_BYTES
            self.open_into(number, chunk, room[written : written + plain], last=end and to_end)
            written += plain
            if end:
                return room[:written]
            number += 1


class ChunkSealer:
    """Seals an object of unknown size, piece by piece."""

    def __init__(self, cipher: ChunkCipher) -> None:
        self._cipher = cipher
        self._number = 0
        self._pending = bytearray()

    def seal(self, data: memoryview) -> bytearray:
        """The sealed bytes of all chunks that are full, and known not to be the last."""
        chunks, pending = self._cipher.chunks, self._pending
        out, taken = bytearray(), 0
        while True:
            capacity = chunks.first_plain if self._number == 0 else chunks.plain
            missing = capacity - len(pending)
            # The last chunk is sealed otherwise: a full one waits until another byte comes.
            if len(data) - taken <= missing:
                pending += data[taken:]
                return out
            piece: bytes | memoryview = data[taken : taken + missing]
            if pending:
                pending += piece
                piece = bytes(pending)
                pending.clear()
            self._append(out, piece, last=False)
            taken += missing

    def finish(self) -> bytearray:
        out = bytearray()
        self._append(out, bytes(self._pending), last=True)
        self._pending.clear()
        return out

    def _append(self, out: bytearray, plain: bytes | memoryview, *, last: bool) -> None:
        if self._number == 0:
            out += self._cipher.head
        start, size = len(out), len(plain) + TAG_BYTES
        out += bytes(size)
        self._cipher.seal_into(self._number, plain, memoryview(out)[start : start + size], last=last)
        self._number += 1

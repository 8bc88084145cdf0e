"""The bytes of a sealed object: another program reads them, and nothing can be changed in them without notice."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from tink import BinaryKeysetReader, cleartext_keyset_handle, streaming_aead
from tink.proto import aes_gcm_hkdf_streaming_pb2, common_pb2, tink_pb2

from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError
from maxbrod.storage.sealing.format import (
    HEAD_BYTES,
    PREFIX_BYTES,
    ChunkCipher,
    Chunks,
    ChunkSealer,
    DataKey,
    make_data_key,
    open_data_key,
    parse_head,
)

NAME = "segments/orders/0/00000000000000000000-x.log"
CHUNK = 1 << 16
FIRST = Chunks().first_plain
SIZES = [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + Chunks().plain, FIRST + Chunks().plain + 1, 300_000]


def sealed(data: bytes, key: DataKey, *, name: str = NAME, piece: int = 1 << 20) -> bytes:
    sealer = ChunkSealer(ChunkCipher.fresh(key, name))
    pieces = [sealer.seal(memoryview(data)[start : start + piece]) for start in range(0, len(data), piece)]
    return b"".join([*pieces, sealer.finish()])


def opened(data: bytes, key: bytes, *, name: str = NAME) -> bytes:
    cipher = ChunkCipher(key, parse_head(data), name)
    return bytes(cipher.open_chunks(0, memoryview(data)[HEAD_BYTES:], to_end=True))


@pytest.fixture
def pair() -> X25519PrivateKey:
    return X25519PrivateKey.generate()


@pytest.fixture
def key(pair: X25519PrivateKey) -> DataKey:
    return make_data_key(kind=1, epoch=bytes(8), public=pair.public_key())


def tink_primitive(key: bytes) -> streaming_aead.StreamingAead:
    streaming_aead.register()
    proto = aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingKey(
        key_value=key,
        params=aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingParams(
            ciphertext_segment_size=CHUNK, derived_key_size=32, hkdf_hash_type=common_pb2.SHA256
        ),
    )
    keyset = tink_pb2.Keyset(
        primary_key_id=1,
        key=[
            tink_pb2.Keyset.Key(
                key_data=tink_pb2.KeyData(
                    type_url="type.googleapis.com/google.crypto.tink.AesGcmHkdfStreamingKey",
                    value=proto.SerializeToString(),
                    key_material_type=tink_pb2.KeyData.SYMMETRIC,
                ),
                status=tink_pb2.ENABLED,
                key_id=1,
                output_prefix_type=tink_pb2.RAW,
            )
        ],
    )
    handle = cleartext_keyset_handle.read(BinaryKeysetReader(keyset.SerializeToString()))
    return handle.primitive(streaming_aead.StreamingAead)


class _Kept(io.BytesIO):
    """Tink closes what it writes to."""

    def close(self) -> None:
        self.kept = self.getvalue()
        super().close()


@pytest.mark.parametrize("size", SIZES)
def test_tink_opens_what_we_seal(key: DataKey, size: int) -> None:
    data = os.urandom(size)
    stored = sealed(data, key)
    source = io.BytesIO(stored[PREFIX_BYTES:])
    with tink_primitive(key.key).new_decrypting_stream(source, key.prefix + NAME.encode()) as stream:
        assert stream.read() == data
    assert Chunks().plain_size(len(stored)) == size


@pytest.mark.parametrize("size", SIZES)
def test_we_open_what_tink_seals(key: DataKey, size: int) -> None:
    data, room = os.urandom(size), _Kept()
    with tink_primitive(key.key).new_encrypting_stream(room, key.prefix + NAME.encode()) as stream:
        stream.write(data)
    assert opened(key.prefix + room.kept, key.key) == data


@pytest.mark.parametrize("piece", [1, 7, CHUNK, CHUNK - 16, 1 << 20])
def test_pieces_of_any_size_make_the_same_object(key: DataKey, piece: int) -> None:
    data = os.urandom(200_000 if piece > 7 else 2_000)
    assert opened(sealed(data, key, piece=piece), key.key) == data


def test_the_data_key_opens_with_the_private_half_alone(pair: X25519PrivateKey, key: DataKey) -> None:
    head = parse_head(sealed(b"x", key))
    assert open_data_key(head, pair) == key.key
    with pytest.raises(CorruptDataError, match="cannot be opened"):
        open_data_key(head, X25519PrivateKey.generate())


def test_two_objects_of_one_data_key_share_no_bytes(key: DataKey) -> None:
    first, second = (sealed(b"the same", key)[PREFIX_BYTES:] for _ in range(2))
    assert first[1:33] != second[1:33]
    assert first[40:] != second[40:]


@pytest.mark.parametrize("at", [0, 4, 5, 6, 7, 8, 16, 95, 96, 97, 128, 135, 136, 5_000, CHUNK + PREFIX_BYTES + 3, -1])
def test_a_flipped_bit_anywhere_is_noticed(pair: X25519PrivateKey, key: DataKey, at: int) -> None:
    stored = bytearray(sealed(os.urandom(100_000), key))
    stored[at] ^= 1
    with pytest.raises((CorruptDataError, UnsupportedFormatError)):
        opened(bytes(stored), open_data_key(parse_head(stored), pair))


@pytest.mark.parametrize(
    "left", [0, 3, 50, HEAD_BYTES, HEAD_BYTES + 15, HEAD_BYTES + 20, PREFIX_BYTES + CHUNK, -1, -17]
)
def test_an_object_that_was_cut_off_is_noticed(key: DataKey, left: int) -> None:
    stored = sealed(os.urandom(150_000), key)
    with pytest.raises(CorruptDataError):
        opened(stored[:left], key.key)


def test_an_object_that_was_cut_off_between_two_chunks_is_noticed(key: DataKey) -> None:
    stored = sealed(os.urandom(150_000), key)
    with pytest.raises(CorruptDataError, match="cut off"):
        opened(stored[: PREFIX_BYTES + 2 * CHUNK], key.key)


def test_chunks_in_another_order_are_noticed(key: DataKey) -> None:
    stored = sealed(os.urandom(4 * CHUNK), key)
    one, two, three = (PREFIX_BYTES + number * CHUNK for number in (1, 2, 3))
    with pytest.raises(CorruptDataError, match="chunk 1"):
        opened(stored[:one] + stored[two:three] + stored[one:two] + stored[three:], key.key)


def test_a_chunk_more_is_noticed(key: DataKey) -> None:
    stored = sealed(os.urandom(2 * CHUNK), key)
    with pytest.raises(CorruptDataError):
        opened(stored + stored[PREFIX_BYTES + CHUNK : PREFIX_BYTES + 2 * CHUNK], key.key)


def test_an_object_under_the_name_of_another_is_noticed(key: DataKey) -> None:
    with pytest.raises(CorruptDataError, match="exchanged"):
        opened(sealed(b"one", key, name="segments/a"), key.key, name="segments/b")


def test_an_object_without_a_seal_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="somebody else wrote it"):
        parse_head(b'{"plain": true}' * 20)
    with pytest.raises(TruncatedDataError):
        parse_head(b"MXBS\x01")


def test_a_range_decrypts_at_most_one_chunk_more_on_either_side() -> None:
    chunks = Chunks()
    for position in (0, FIRST - 1, FIRST, FIRST + chunks.plain - 1, FIRST + chunks.plain):
        number = chunks.number_at(position)
        assert chunks.plain_start(number) <= position < chunks.plain_start(number + 1)
        assert chunks.sealed_start(number) == (HEAD_BYTES if number == 0 else PREFIX_BYTES + number * CHUNK)


def test_the_example_of_the_documentation_opens_as_it_says() -> None:
    text = (Path(__file__).parents[3] / "docs/format.md").read_text()
    block = text.partition("The object of 5 bytes `hello`")[2].split("```")[1]
    stored = bytes.fromhex("".join(line.split()[1] for line in block.strip().splitlines()))
    head = parse_head(stored)
    key = open_data_key(head, X25519PrivateKey.from_private_bytes(bytes(range(32))))
    assert head.epoch.hex() == "a1b2c3d4e5f60718"
    assert opened(stored, key, name="snapshots/x.json.zst") == b"hello"


@pytest.mark.parametrize("size", [0, 1, FIRST, FIRST + 1, 65_480, 65_481, 131_000, 131_001, 10_000_000])
def test_the_size_is_as_the_documentation_says(key: DataKey, size: int) -> None:
    assert len(sealed(bytes(size), key)) == size + 136 + 16 * max(1, -(-(size + 40) // 65_520))

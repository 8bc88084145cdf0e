"""Mutates valid buffers at random and feeds them to every entry point: only clean errors may come out.

A program, run by `test_fuzz` in a process of its own with NUMBA_BOUNDSCHECK=1 and a private cache, so that a
kernel that reads or writes out of bounds raises instead of passing unseen.

python -m support.programs.fuzz_batches CASES SEED
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from collections import Counter
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
from numba import config

from maxbrod.batch.compression import compress, decompress
from maxbrod.batch.cuts import Cut
from maxbrod.batch.decode import decode
from maxbrod.batch.headers import walk
from maxbrod.batch.replay import replay
from maxbrod.batch.transactions import from_markers
from maxbrod.errors import MaxbrodError
from maxbrod.model import Codec
from support.old_messages import message, wrapper
from support.plain_batches import Record, write_batch, write_record

if TYPE_CHECKING:
    from collections.abc import Callable

BYTES_MAX = 1 << 20


def seeds(rng: random.Random) -> list[bytes]:
    def blob() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(3), rng.randbytes(40)])

    def record(offset: int) -> Record:
        headers = [(rng.randbytes(rng.randrange(4)), blob()) for _ in range(rng.randrange(3))]
        return Record(
            offset=offset, timestamp=rng.randrange(-(1 << 50), 1 << 50), key=blob(), value=blob(), headers=headers
        )

    valid = []
    for codec in Codec:
        records = [record(100 + 2 * i) for i in range(rng.randrange(1, 6))]
        body = b"".join(write_record(each, 100, 0) for each in records)
        packed = compress(codec, np.frombuffer(body, np.uint8))
        valid.append(
            write_batch(
                records,
                base_offset=100,
                base_timestamp=0,
                last_offset_delta=20,
                attributes=int(codec) | rng.choice([0, 0x08, 0x10]),
                body=packed,
            )
        )
    marker = Record(offset=200, timestamp=0, key=struct.pack(">hh", 0, 0), value=b"")
    valid.append(write_batch([marker], attributes=0x30, producer_id=1))
    old = [Record(offset=i, timestamp=5, key=blob(), value=blob()) for i in range(3)]
    valid += [message(magic, each) for magic in (0, 1) for each in old]
    valid += [wrapper(magic, codec, old) for magic in (0, 1) for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)]
    return valid


def mutate(rng: random.Random, text: bytes) -> bytes:
    data = bytearray(text)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                data[at : at + 1] = rng.choice([b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xfe"])
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 12))
            case 3:
                del data[at : at + rng.randrange(1, 12)]
            case 4:
                del data[at:]
            case 5:
                data[at : at + 4] = struct.pack(
                    ">i", rng.choice([-1, -2, 0, 1, 1 << 30, (1 << 31) - 1, -(1 << 31), rng.randrange(1 << 20)])
                )
    return bytes(data)


def reseal(batch: bytes) -> bytes:
    """Make length and checksum right again, so that the mutation reaches what stands behind them."""
    if len(batch) < 26:
        return batch
    data = bytearray(batch)
    struct.pack_into(">i", data, 8, len(data) - 12)
    if data[16] == 2:
        struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    else:
        struct.pack_into(">I", data, 12, zlib.crc32(bytes(data[16:])))
    return bytes(data)


def mutate_inside(rng: random.Random, batch: bytes) -> bytes:
    """Change the records under the compression."""
    if batch[16] != 2:
        return mutate_wrapper(rng, batch)
    codec = Codec(batch[22] & 7)
    if codec is Codec.NONE:
        return mutate(rng, batch)
    records = decompress(codec, np.frombuffer(batch[61:], np.uint8)).tobytes()
    return batch[:61] + compress(codec, np.frombuffer(mutate(rng, records), np.uint8))


def mutate_wrapper(rng: random.Random, entry: bytes) -> bytes:
    """Change a message inside an old wrapper, mostly with its checksum made right again."""
    codec, start = Codec(entry[17] & 7), 34 if entry[16] == 1 else 26
    if codec is Codec.NONE:
        return mutate(rng, entry)
    inner = decompress(codec, np.frombuffer(entry[start:], np.uint8)).tobytes()
    messages = []
    while inner:
        size = 12 + struct.unpack_from(">i", inner, 8)[0]
        messages.append(inner[:size])
        inner = inner[size:]
    at = rng.randrange(len(messages))
    changed = mutate(rng, messages[at])
    messages[at] = reseal(changed) if rng.randrange(4) else changed
    packed = compress(codec, np.frombuffer(b"".join(messages), np.uint8))
    return entry[: start - 4] + struct.pack(">i", len(packed)) + packed


def case(rng: random.Random, corpus: list[bytes]) -> bytes:
    parts = [rng.choice(corpus) for _ in range(rng.choice([1, 1, 2, 3]))]
    at = rng.randrange(len(parts))
    match rng.randrange(4):
        case 0:
            parts[at] = mutate(rng, parts[at])
        case 1 | 2:
            parts[at] = reseal(mutate(rng, parts[at]))
        case 3:
            parts[at] = reseal(mutate_inside(rng, parts[at]))
    return b"".join(parts)


def everything(buffer: bytes) -> None:
    headers = walk(buffer)
    records = decode(buffer, headers, decompressed_bytes_max=BYTES_MAX)
    records.validate(full=True)
    aborted = from_markers(buffer, headers).aborted
    middle = Cut(first_offset=records.column("offset")[records.num_rows // 2].as_py() if records.num_rows else 0)
    for exact in (False, True):
        replay(buffer, headers, aborted, cut=middle, exact=exact, batch_bytes_max=BYTES_MAX)


def unchecked(buffer: bytes) -> None:
    decode(buffer, walk(buffer, check_crc=False), decompressed_bytes_max=BYTES_MAX)


def run(cases: int, seed: int) -> Counter[str]:
    rng = random.Random(seed)
    corpus = seeds(rng)
    for text in corpus:
        everything(text)
    outcomes: Counter[str] = Counter()
    for number in range(cases):
        if number % 5000 == 0:
            corpus = seeds(rng)
        buffer = case(rng, corpus)
        target: Callable[[bytes], None] = rng.choice([everything, unchecked])
        try:
            target(buffer)
            outcomes["sound"] += 1
        except MaxbrodError as error:
            outcomes[type(error).__name__] += 1
        except BaseException:
            print(f"seed {seed} case {number} {target.__name__}: {buffer.hex()}", file=sys.stderr)
            raise
    return outcomes


if __name__ == "__main__":
    assert config.BOUNDSCHECK, "set NUMBA_BOUNDSCHECK=1: without it an access out of bounds goes unseen"
    for outcome, count in sorted(run(int(sys.argv[1]), int(sys.argv[2])).items()):
        print(outcome, count)

"""Mutates segments of both layouts at random and reads them: only clean errors may come out.

A program, run by `test_processes` in a process of its own with NUMBA_BOUNDSCHECK=1 and a private cache, so that a
kernel that reads or writes out of bounds raises instead of passing unseen.

python -m support.programs.fuzz_backups CASES SEED
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from numba import config

from maxbrod.errors import MaxbrodError
from maxbrod.storage.local import LocalStorage
from support import plain_kbak as kbak_plain
from support import plain_kbs as kbs_plain
from support.plain_batches import Record, varint
from support.tool_backups import KBAK, KBS, segment_of


def records(rng: random.Random) -> list[Record]:
    def blob() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(3), rng.randbytes(40)])

    return [
        Record(
            offset=100 + 2 * row,
            timestamp=rng.randrange(-(1 << 62), 1 << 62),
            key=blob(),
            value=blob(),
            headers=[(rng.randbytes(rng.randrange(4)), blob()) for _ in range(rng.randrange(3))],
        )
        for row in range(rng.randrange(1, 6))
    ]


def mutate(rng: random.Random, text: bytes) -> bytes:
    data = bytearray(text)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        replacement = rng.choice(
            [b"", b"\0", b"\xff", b"\x7f", b"\x80", rng.randbytes(4), b"\xff\xff\xff\x7f", varint(1 << 62), varint(-2)]
        )
        data[at : at + rng.choice([0, 1, 1, 4, 9])] = replacement
    return bytes(data)


def segments(rng: random.Random, held: list[Record]) -> list[tuple[str, bytes]]:
    """One of each layout, damaged below right checksums, or anywhere."""
    codec = rng.randrange(3)
    old = b"".join(map(kbak_plain.write_record, held))
    kbak = kbak_plain.write_segment(held, codec, body=mutate(rng, old))
    block = mutate(rng, kbs_plain.write_block(held)) or b"x"
    batch = kbs_plain.write_batch(held, codec, block=block)
    kbs = kbs_plain.write_segment([batch], first=held[0].offset, count=len(held), codec=codec)
    if rng.random() < 0.2:
        kbak, kbs = mutate(rng, kbak), mutate(rng, kbs)
    return [("kbak", kbak), ("kbs", kbs)]


def main(cases: int, seed: int) -> None:
    assert config.BOUNDSCHECK, "run with NUMBA_BOUNDSCHECK=1"
    rng, outcomes = random.Random(seed), Counter[str]()
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for _ in range(cases):
            held = records(rng)
            for name, data in segments(rng, held):
                storage = LocalStorage(Path(folder))
                Path(folder, "s").write_bytes(data)
                tool = KBAK if name == "kbak" else KBS
                try:
                    tool.read(storage, segment_of("s", held))
                    outcomes[f"{name} read"] += 1
                except MaxbrodError as error:
                    outcomes[f"{name} {type(error).__name__}"] += 1
    print(dict(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

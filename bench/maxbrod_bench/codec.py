"""`maxbrod bench codec`: the record-batch engine on one core, beside kafka-python's own record reader."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from kafka.codec import has_lz4
from kafka.record import MemoryRecords

from maxbrod.batch.compression import Arena, portions
from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import patch
from maxbrod.errors import EnvironmentMissingError
from maxbrod.model import Codec
from maxbrod.sandbox.events import orders
from maxbrod_bench.race import Measurement, measure_fresh, peak_bytes, race, run_python

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE_BYTES: Final = 1 << 20
"""The size of the input of one call of `decode`, as from a reader that streams an object."""


def measure(*, records: int, batch_bytes: int, rounds: int) -> list[Measurement]:
    """Every measurement of the engine, in one process, contenders in turns."""
    columns = orders(records)
    plain, packed = (encode(columns, codec=codec, batch_bytes_max=batch_bytes) for codec in (Codec.NONE, Codec.LZ4))
    headers = walk(plain)
    packed_pieces, plain_pieces = _pieces(packed), _pieces(plain)
    peer_bytes = packed.tobytes()
    patched, bases = plain.copy(), np.arange(len(headers))
    best = race(
        {
            "decode": lambda: [decode(piece).num_rows for piece in packed_pieces],
            "decode_plain": lambda: [decode(piece).num_rows for piece in plain_pieces],
            "encode": lambda: encode(columns, codec=Codec.LZ4, batch_bytes_max=batch_bytes),
            "encode_plain": lambda: encode(columns, batch_bytes_max=batch_bytes),
            "patch": lambda: patch(patched, headers, producer_id=7, producer_epoch=0, base_sequence=bases),
            "walk": lambda: walk(plain),
            "peer": lambda: _read_with_kafka_python(peer_bytes),
        },
        rounds=rounds,
    )
    decode_rate, peer_rate = records / best["decode"], records / best["peer"]
    size = f"{len(plain) / records:.0f} B a record"
    return [
        Measurement(name="decode lz4", rate=decode_rate, unit="records/s", wanted=1.5e6, note=size),
        Measurement(name="decode uncompressed", rate=records / best["decode_plain"], unit="records/s"),
        Measurement(name="kafka-python, the same lz4 bytes", rate=peer_rate, unit="records/s"),
        Measurement(name="decode lz4 over kafka-python", rate=decode_rate / peer_rate, unit="times", wanted=10),
        Measurement(name="encode lz4", rate=records / best["encode"], unit="records/s", wanted=1e6),
        Measurement(name="encode uncompressed", rate=records / best["encode_plain"], unit="records/s", wanted=1e6),
        Measurement(name="patch", rate=len(plain) / best["patch"], unit="bytes/s", wanted=3e9),
        Measurement(name="walk and check CRC", rate=len(plain) / best["walk"], unit="bytes/s", wanted=3e9),
        Measurement(
            name="memory over decompressed",
            rate=memory_ratio(records, batch_bytes),
            unit="times",
            wanted=3,
            note="at most",
        ),
        Measurement(name="first decode of a process", rate=first_decode_seconds(), unit="seconds"),
    ]


def _pieces(data: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """The buffer in runs of whole batches of about PIECE_BYTES."""
    position = walk(data).position
    starts = position[np.diff(position // PIECE_BYTES, prepend=-1) > 0].tolist()
    return [data[start:end] for start, end in zip(starts, [*starts[1:], data.size], strict=True)]


def _read_with_kafka_python(data: bytes) -> int:
    if not has_lz4():
        raise EnvironmentMissingError(
            "kafka-python, the peer of this benchmark, needs the lz4 package", hint="make setup"
        )
    records = MemoryRecords(data)
    count = 0
    while (batch := records.next_batch()) is not None:
        for record in batch:
            _ = (record.offset, record.timestamp, record.key, record.value, record.headers)
            count += 1
    return count


def first_decode_seconds(tries: int = 3) -> float:
    """The time from the first import to the first decoded batch, with the kernels in numba's cache."""
    batch = encode(orders(100), codec=Codec.LZ4).tobytes().hex()
    program = (
        "import time; start = time.perf_counter(); from maxbrod.batch.decode import decode; "
        f"decode(bytes.fromhex('{batch}')); print(time.perf_counter() - start)"
    )
    return min(float(run_python("-c", program)) for _ in range(tries))


def memory_ratio(records: int, batch_bytes: int) -> float:
    """The peak memory that decoding adds to a fresh process, divided by the decompressed bytes."""
    measured = measure_fresh(__name__, "memory_probe", records, batch_bytes)
    return float(measured["added"] / measured["decompressed"])


def memory_probe(records: int, batch_bytes: int) -> dict[str, int]:
    """Return the memory that decoding adds to this process, and the decompressed bytes."""
    # A small piece many times over: building all of it at once would itself be the peak.
    pieces = 20
    piece = encode(orders(max(1, records // pieces)), codec=Codec.LZ4, batch_bytes_max=batch_bytes)
    parts = portions(piece, walk(piece), Arena(0))
    decompressed = sum(int((unpacked.end - unpacked.start).sum()) for _, unpacked in parts) * pieces
    decode(piece)
    packed = np.tile(piece, pieces)
    before = _peak_bytes_from_here()
    rows = decode(packed).num_rows
    return {"added": _peak_bytes() - before, "decompressed": decompressed, "rows": rows}


def _peak_bytes_from_here() -> int:
    """The peak so far. Linux can reset it, so that start-up does not hide what comes after."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _peak_bytes()


def _peak_bytes() -> int:
    with suppress(OSError):
        return peak_bytes()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

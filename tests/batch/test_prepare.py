from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

# After prepare(), real calls of every kind; a kernel compiled for a second set of types would make users wait.
PROGRAM = """
import numpy as np, sys
sys.path.insert(0, sys.argv[1])
from numba.core.registry import CPUDispatcher
from support.plain_batches import Record, write_batch
from support.old_messages import message, wrapper
from maxbrod.batch import hash_kernels, hmac_kernels, kernels, legacy_kernels
from maxbrod.batch.cuts import Cut
from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.hashes import digest_records, hash_fields
from maxbrod.batch.headers import walk
from maxbrod.batch.hashes import partition_for
from maxbrod.prepare import prepare_batches
from maxbrod.batch.replay import replay
from maxbrod.batch.decode import lowest_timestamps
from maxbrod.model import Codec
prepare_batches()
def compiled():
    modules = (hash_kernels, hmac_kernels, kernels, legacy_kernels)
    functions = {name: each for module in modules for name, each in vars(module).items()}
    return {name: len(f.signatures) for name, f in functions.items() if isinstance(f, CPUDispatcher) and f.signatures}
before = compiled()
fixed = lambda text: np.frombuffer(text, np.uint8)
records = [Record(offset=i, timestamp=i, key=b"k", value=b"v") for i in range(5)]
for text in (write_batch(records), message(0, records[0]), wrapper(1, Codec.GZIP, records)):
    for kind in (bytes, bytearray, memoryview, fixed, lambda text: fixed(text).copy()):
        batch = decode(kind(text))
        digest_records(hash_fields(batch), np.arange(batch.num_rows), ["key"])
        lowest_timestamps(kind(text), walk(kind(text)))
        replay(kind(text), walk(kind(text)), [], cut=Cut(since_ms=2), exact=True, batch_bytes_max=1000)
        partition_for(batch.slice(1).column("key"), 3, null_partition=1)
        for codec in Codec:
            decode(encode(batch.slice(1), codec=codec))
assert compiled() == before, (before, compiled())
assert set(before.values()) == {1}, before
print(sorted(before))
"""


def test_prepare_compiles_every_kernel_that_real_calls_use() -> None:
    # With the cache that set-up has filled: a signature counts the same whether it was compiled or loaded.
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[1])]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "scan" in ran.stdout


def test_decoding_and_encoding_load_no_pandas() -> None:
    """It would add half a second to the first batch of every process, and nobody needs it there."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from support.plain_batches import Record, write_batch\n"
        "from support.old_messages import message\n"
        "from maxbrod.batch.decode import decode\n"
        "from maxbrod.batch.encode import encode\n"
        "record = Record(offset=0, timestamp=0, key=b'k', value=None, headers=[(b'h', None)])\n"
        "log = write_batch([record]) + message(1, record)\n"
        "encode(decode(log))\n"
        "sys.exit('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[1])]
    assert subprocess.run(command, check=False).returncode == 0

"""Kernels of layouts are compiled at set-up, for the types that real calls use and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from maxbrod.layouts.foreign import ClusterFacts, WriteOptions
from maxbrod.layouts.registry import layout_of
from maxbrod.prepare import WHERE, specimen
from maxbrod.storage.stores import open_storage

pytestmark = pytest.mark.full

COMPILED = ("kbak", "kbs", "binlog", "avro")

# After set-up, real calls of every kind; a kernel compiled for a second set of types would make users wait.
PROGRAM = """
import sys, tempfile
sys.path[:0] = sys.argv[2:]
from numba.core.registry import CPUDispatcher
from support.given_records import Given, batch
from maxbrod.layouts.foreign import ClusterFacts, WriteOptions
from maxbrod.prepare import prepare_layout
from maxbrod.layouts.registry import layout_of
from maxbrod.prepare import WHERE
from maxbrod.storage.stores import open_storage
name = sys.argv[1]
layout = layout_of(name)
prepare_layout(name)
ours = ("maxbrod.layouts.kernels", f"maxbrod.layouts.{name}.")
modules = [m for key, m in sys.modules.items() if key.startswith(ours) and key.endswith("kernels")]
def compiled():
    found = {(m.__name__, n): f for m in modules for n, f in vars(m).items() if isinstance(f, CPUDispatcher)}
    return {key: len(f.signatures) for key, f in found.items() if f.signatures}
before = compiled()
records = [Given(offset=i, key=None if i % 3 else b"k", headers=((b"h", None),) * (i % 3)) for i in range(40)]
codecs, extras = ["none"], [{}]
if name in ("kbak", "kbs"):
    codecs, extras = ["none", "lz4", "zstd"], [{}, {"offset_headers": "true"}]
for options in (WriteOptions(codec=c, extra=e, segment_bytes_max=200) for c in codecs for e in extras):
    storage = open_storage(tempfile.mkdtemp(dir=sys.argv[2]))
    for run in (records[:10], records[10:20], records[20:]):
        survey = layout.survey(storage)
        whole = batch(run)
        written = layout.write(storage, WHERE, [whole.slice(0, 3), whole.slice(3)], options, survey=survey)
        layout.publish(storage, survey, written, options, ClusterFacts())
    count = sum(b.num_rows for s in layout.survey(storage).segments for b in layout.read(storage, s))
    assert count == len(records), count
if name == "binlog":
    from maxbrod.layouts.binlog.reader import repair
    storage.delete([info.path for info in storage.list() if info.path.endswith("_index")])
    repair(storage)
assert compiled() == before, (before, compiled())
assert set(before.values()) == {1}, before
print(sorted(before))
"""


@pytest.mark.parametrize("name", COMPILED)
def test_set_up_compiles_every_kernel_that_real_calls_use(name: str, tmp_path: Path) -> None:
    # With the cache that set-up has filled: a signature counts the same whether it was compiled or loaded.
    command = [sys.executable, "-c", PROGRAM, name, str(tmp_path), str(Path(__file__).parent.parent)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "gather" in ran.stdout
    assert f"maxbrod.layouts.{name}." in ran.stdout


def test_reading_and_writing_load_no_pandas(tmp_path: Path) -> None:
    """It would add half a second to the first batch of every worker. One process tries all layouts."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from support.plain_batches import Record, write_batch\n"
        "from maxbrod.batch.decode import decode\n"
        "from maxbrod.layouts.registry import layout_of\n"
        "from maxbrod.model import TopicPartition\n"
        "from maxbrod.layouts.foreign import ClusterFacts, WriteOptions\n"
        "from maxbrod.storage.stores import open_storage\n"
        "record = Record(offset=5, timestamp=0, key=b'k', value=None, headers=[(b'h', None)])\n"
        "records = decode(write_batch([record]))\n"
        "where = TopicPartition(topic='t', partition=0)\n"
        "for name in sys.argv[3:]:\n"
        "    layout, storage = layout_of(name), open_storage(f'{sys.argv[1]}/{name}')\n"
        "    survey, options = layout.survey(storage), WriteOptions()\n"
        "    written = layout.write(storage, where, [records], options, survey=survey)\n"
        "    layout.publish(storage, survey, written, options, ClusterFacts())\n"
        "    assert sum(b.num_rows for s in layout.survey(storage).segments for b in layout.read(storage, s)) == 1\n"
        "    assert 'pandas' not in sys.modules, name"
    )
    tests = str(Path(__file__).parent.parent)
    command = [sys.executable, "-c", code, str(tmp_path), tests, *COMPILED]
    assert subprocess.run(command, check=False).returncode == 0


def test_looking_at_an_archive_of_ours_loads_neither_numba_nor_pandas(tmp_path: Path) -> None:
    """Detection runs on many storages that hold no such archive. One process looks at all layouts."""
    for name in COMPILED:
        layout, storage = layout_of(name), open_storage(str(tmp_path / name))
        survey, options = layout.survey(storage), WriteOptions()
        written = layout.write(storage, WHERE, [specimen()], options, survey=survey)
        layout.publish(storage, survey, written, options, ClusterFacts())
    code = (
        "import sys\n"
        "from maxbrod.layouts.registry import layout_of\n"
        "from maxbrod.storage.stores import open_storage\n"
        "for name in sys.argv[2:]:\n"
        "    layout, storage = layout_of(name), open_storage(f'{sys.argv[1]}/{name}')\n"
        "    assert layout.detect(storage) and len(layout.survey(storage).segments) == 1\n"
        "    assert not {'numba', 'pandas'} & sys.modules.keys(), name"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path), *COMPILED], check=False).returncode == 0

"""Promises about whole processes: what they load, what they compile, what bounds their kernels keep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

# After prepare(), real calls of every kind; a kernel compiled for a second set of types would make users wait.
PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
from tempfile import TemporaryDirectory
from numba.core.registry import CPUDispatcher
from examples import to_arrow
from kbak.archives import WHERE, NOTHING, some
from maxbrod.layouts import kernels
from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.kbak import kernels as kbak_kernels
from maxbrod.layouts.kbs import crc64_kernels, kernels as kbs_kernels
from maxbrod.layouts.prepare import prepare_layout
from maxbrod.layouts.registry import layout_of
from maxbrod.storage.local import LocalStorage
def compiled():
    modules = (kernels, kbak_kernels, kbs_kernels, crc64_kernels)
    functions = {f"{m.__name__} {name}": f for m in modules for name, f in vars(m).items()}
    return {name: len(f.signatures) for name, f in functions.items() if isinstance(f, CPUDispatcher) and f.signatures}
for name in ("kbak", "kbs"):
    with TemporaryDirectory() as folder:
        prepare_layout(layout_of(name), Path(folder))
before = compiled()
for name in ("kbak", "kbs"):
    layout = layout_of(name)
    for codec in ("none", "lz4", "zstd"):
        for extra in ({}, {"offset_headers": "true"}):
            with TemporaryDirectory() as folder:
                storage = LocalStorage(Path(folder))
                batches = [to_arrow(some(0, 9)), to_arrow(some(9, 9)).slice(3)]
                options = WriteOptions(codec=codec, extra=extra)
                for segment in layout.write(storage, WHERE, batches, options, survey=NOTHING):
                    list(layout.read(storage, segment))
assert compiled() == before, (before, compiled())
assert set(before.values()) == {1}, before
print(sorted(before))
"""

LOOKING = """
import sys
from maxbrod.layouts.registry import detect_layout, layout_of
from maxbrod.storage.local import LocalStorage
from pathlib import Path
storage = LocalStorage(Path(sys.argv[1]))
for name in ("kbak", "kbs"):
    assert not layout_of(name).detect(storage)
    layout_of(name).survey(storage)
sys.exit("numba" in sys.modules or "pandas" in sys.modules)
"""


def _run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_prepare_compiles_every_kernel_that_real_calls_use(tmp_path: Path) -> None:
    ran = _run(["-c", PROGRAM, str(TESTS / "batch"), str(TESTS / "layouts")], NUMBA_CACHE_DIR=str(tmp_path))

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "maxbrod.layouts.kbak.kernels scan" in ran.stdout


def test_looking_at_an_archive_loads_neither_numba_nor_pandas(tmp_path: Path) -> None:
    ran = _run(["-c", LOOKING, str(tmp_path)])

    assert ran.returncode == 0, ran.stderr[-3000:]


@pytest.mark.slow
def test_kernels_keep_their_bounds_whatever_they_are_given(tmp_path: Path) -> None:
    program = str(Path(__file__).parent / "fuzz.py")
    ran = _run([program, "20000", "1"], NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "kbs CorruptDataError" in ran.stdout

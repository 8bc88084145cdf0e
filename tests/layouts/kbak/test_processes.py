"""Promises about whole processes: what they load, what they compile, what bounds their kernels keep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


def _run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_kernels_keep_their_bounds_whatever_they_are_given(tmp_path: Path) -> None:
    program = str(Path(__file__).parent / "fuzz.py")
    ran = _run([program, "20000", "1"], NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "kbs CorruptDataError" in ran.stdout

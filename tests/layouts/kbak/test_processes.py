"""Promises about whole processes: what they load, what they compile, what bounds their kernels keep."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.processes import environment, program


@pytest.mark.slow
def test_kernels_keep_their_bounds_whatever_they_are_given(tmp_path: Path) -> None:
    bounded = environment(NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
    command = program("fuzz_backups", 20_000, 1)
    ran = subprocess.run(command, env=bounded, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "kbs CorruptDataError" in ran.stdout

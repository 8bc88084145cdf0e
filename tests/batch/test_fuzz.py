from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.processes import environment, program

pytestmark = pytest.mark.full


def outcomes(cases: int, seed: int, cache: Path) -> dict[str, int]:
    ran = subprocess.run(
        program("fuzz_batches", cases, seed),
        env=environment(NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(cache), PYTHONWARNINGS="error"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return {name: int(count) for name, count in (line.split() for line in ran.stdout.splitlines())}


def check_that_every_outcome_was_met(met: dict[str, int], cases: int) -> None:
    """A fuzzer whose mutations all die at the first check proves nothing."""
    assert sum(met.values()) == cases
    for outcome in ("sound", "CorruptDataError", "UnsupportedFormatError"):
        assert met[outcome] > cases // 1000, met


def test_random_damage_gives_only_clean_errors(tmp_path: Path) -> None:
    check_that_every_outcome_was_met(outcomes(10_000, 1, tmp_path), 10_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 105))
def test_a_million_random_damages_give_only_clean_errors(seed: int, tmp_path: Path) -> None:
    check_that_every_outcome_was_met(outcomes(200_000, seed, tmp_path), 200_000)

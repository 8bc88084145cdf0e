"""What the tools themselves have written, where it is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.processes import TESTS

SAMPLES = Path(os.environ.get("MAXBROD_SAMPLES") or TESTS.parents[1] / "shared" / "samples")


def samples_of(tool: str) -> Path:
    """The samples of a tool; the test is skipped where they are not there."""
    folder = SAMPLES / tool
    if not folder.is_dir():
        pytest.skip(f"there are no samples in {folder}; set MAXBROD_SAMPLES to where they are")
    return folder

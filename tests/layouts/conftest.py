"""Lets these tests use the plain writer and reader of batches that the tests of `batch` have."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "batch"))

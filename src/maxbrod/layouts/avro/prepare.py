"""Compiles the kernels that only files of the tool need: those for its headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.kernels import sealed
from maxbrod.layouts.avro import kernels

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage


def prepare(_storage: Storage) -> None:
    """Call the kernel with the types of real calls."""
    nothing = np.empty(0, np.int64)
    kernels.unwrap_java(sealed(np.empty(0, np.uint8)), nothing, nothing)

"""Compiles the kernels of the layout avro into numba's cache: `python -m maxbrod.layouts.avro.prepare`."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import numpy as np

from maxbrod.batch.kernels import sealed
from maxbrod.layouts.avro import header_kernels
from maxbrod.layouts.avro.layout import LAYOUT
from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.specimen import WHERE, specimen
from maxbrod.storage.opening import open_storage


def prepare() -> None:
    """Call each kernel once with the very types that real calls use."""
    with TemporaryDirectory() as folder:
        storage = open_storage(folder)
        survey = LAYOUT.survey(storage)
        for segment in LAYOUT.write(storage, WHERE, [specimen()], WriteOptions(), survey=survey):
            for _ in LAYOUT.read(storage, segment):
                pass
    nothing = np.empty(0, np.int64)
    header_kernels.unwrap_java(sealed(np.empty(0, np.uint8)), nothing, nothing)


if __name__ == "__main__":
    prepare()

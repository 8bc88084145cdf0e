"""Writes one slice into an object, and collects its digest and what the catalog records of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.kafka.digest import Digest
from maxbrod.layouts.kafka.frames import FrameEncoder
from maxbrod.layouts.kafka.tally import Tally

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from maxbrod.layouts.kafka.described_batches import DescribedBatches
    from maxbrod.layouts.kafka.objects import OpenObject
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.model import AbortedTransaction


class SliceWriter:
    """Appends to `out`. While the slice is open, nothing else may be written to `out`."""

    def __init__(self, out: OpenObject, level: int | None) -> None:
        """`level` is the zstd level of a log in frames; None: no frames."""
        self.out = out
        self._position = out.writer.size
        self._frames = None if level is None else FrameEncoder(level)
        self._digest = Digest()
        self.tally = Tally()

    def add(self, batches: DescribedBatches) -> None:
        self.tally.add(batches)
        if self._frames is None:
            self._write(batches.log)
            return
        for frame in self._frames.encode(batches.log):
            self._write(frame)

    def finish(self, aborted: tuple[AbortedTransaction, ...]) -> Slice:
        if self._frames is not None:
            for frame in self._frames.finish():
                self._write(frame)
        return self.tally.as_slice(
            path=self.out.path,
            position=self._position,
            size=self.out.writer.size - self._position,
            aborted=aborted,
            digest=str(self._digest),
        )

    def _write(self, data: NDArray[np.uint8]) -> None:
        self.out.writer.write(data)
        self._digest.add(data)

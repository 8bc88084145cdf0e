"""Sums up what the catalog records of a slice, batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.layouts.kafka.slices import Slice
from maxbrod.model import AbortedTransaction, Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.layouts.kafka.described_batches import DescribedBatches

_CODECS: Final = max(Codec) + 1


class Tally:
    def __init__(self) -> None:
        self.base_offset = -1
        self.end_offset = -1
        self.raw_bytes = 0
        self.records = 0
        self.control_records = 0
        self.min_timestamp: int | None = None
        self._highest: int | None = None
        self._misstated = False
        self._exact = True
        self._first_leader_epoch = -1
        self._last_leader_epoch = -1
        self.epochs: list[tuple[int, int]] = []
        """Where leader epochs begin: offset and epoch."""
        self._codec_bytes = np.zeros(_CODECS, np.int64)

    def add(self, batches: DescribedBatches) -> None:
        facts, headers = batches.facts, batches.headers
        if self.base_offset < 0:
            self.base_offset = int(facts.first_offset[0])
            self._first_leader_epoch = int(headers["leader_epoch"][0])
        self._add_epochs(facts.first_offset, headers["leader_epoch"])
        self.end_offset = int(facts.last_offset[-1]) + 1
        self._last_leader_epoch = int(headers["leader_epoch"][-1])
        self.raw_bytes += int(headers.size.sum())
        self.records += int(facts.records.sum())
        self.control_records += int(facts.records[headers.control].sum())
        np.add.at(self._codec_bytes, facts.codec, headers.size)
        # A record without a timestamp, as in magic 0, counts as older than any other.
        self._exact = self._exact and bool(((facts.exact & facts.dated) | (facts.records == 0)).all())
        if facts.dated.any():
            lowest, highest = int(facts.lowest[facts.dated].min()), int(facts.highest[facts.dated].max())
            self.min_timestamp = lowest if self.min_timestamp is None else min(self.min_timestamp, lowest)
            self._highest = highest if self._highest is None else max(self._highest, highest)
            self._misstated |= bool((facts.dated & headers.misstates_highest).any())

    def _add_epochs(self, offsets: NDArray[np.int64], epochs: NDArray[np.int32]) -> None:
        before = np.append(np.int64(self._last_leader_epoch), epochs[:-1])
        new = epochs != before
        new[0] |= not self.epochs
        if new.any():
            self.epochs += zip(offsets[new].tolist(), epochs[new].tolist(), strict=True)

    @property
    def max_timestamp(self) -> int | None:
        """None also if a batch says of itself that its first record is newer: then nobody knows."""
        return None if self._misstated else self._highest

    @property
    def codec(self) -> str:
        return Codec(int(self._codec_bytes.argmax())).name.lower()

    def as_slice(
        self, *, path: str, position: int, size: int, aborted: tuple[AbortedTransaction, ...], digest: str
    ) -> Slice:
        return Slice(
            path=path,
            position=position,
            bytes=size,
            raw_bytes=self.raw_bytes,
            codec=self.codec,
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            records=self.records,
            control_records=self.control_records,
            min_timestamp=self.min_timestamp,
            max_timestamp=self.max_timestamp,
            min_timestamp_exact=self._exact and self.min_timestamp is not None,
            first_leader_epoch=self._first_leader_epoch,
            last_leader_epoch=self._last_leader_epoch,
            aborted=aborted,
            digest=digest,
        )

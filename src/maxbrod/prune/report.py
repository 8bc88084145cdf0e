"""The report of a prune: neighbouring segments with the same reason together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from maxbrod.errors import EXIT_DONE
from maxbrod.prune.plan import WORDS, JudgedRows, Reason, numbers_of
from maxbrod.storage.interface import HeldObject
from maxbrod.work.report import Report

if TYPE_CHECKING:
    from maxbrod.prune.runs import RunDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Neighbouring segments of one partition that stay or go for the same reason."""

    topic: str
    topic_id: str
    partition: int
    first_offset: int
    end_offset: int
    segments: int
    records: int
    bytes: int
    keep: bool
    reason: str
    replaced: bool
    """True if later rows have replaced them: only queries as of an older run return them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneTotals:
    segments: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport(Report):
    archive: str
    layout: str
    items: tuple[Item, ...]
    """Every segment of the archive: neighbours with the same reason together."""
    runs: tuple[RunDecision, ...]
    going: PruneTotals
    kept: PruneTotals
    objects: int
    """Objects that nothing would name any more. A pack stays while one of its slices does."""
    objects_bytes: int
    """The size of the slices in those objects."""
    applied: bool
    run_id: str | None = None
    """The run that `--undo` takes."""
    undo_until_ms: int | None = None
    ages_until_ms: int = 0
    """The time up to which ages count: the earliest of this machine's clock, the store's, and the newest backup."""
    idle_ms: int = 0
    """The distance from there to this machine's clock, if it is the newest backup."""
    held_objects: tuple[HeldObject, ...] = ()
    """Objects that were to be deleted, and that a lock or a missing right keeps."""

    @property
    def exit_code(self) -> int:
        return EXIT_DONE

    @property
    def runs_going(self) -> int:
        return sum(not run.keep for run in self.runs)


def items_of(judged: JudgedRows, holds: Sequence[str] = ()) -> list[Item]:
    """Every row, in its order. `holds` are the words for holds, by the numbers of holders."""
    rows, reasons = judged.rows, judged.reasons
    if not rows.num_rows:
        return []
    holder = np.where(reasons == Reason.HELD, judged.holders, -1)
    changes = (np.diff(judged.partition) != 0) | (np.diff(reasons) != 0) | (np.diff(holder) != 0)
    first = np.flatnonzero(np.append(True, changes))
    last = np.append(first[1:], rows.num_rows) - 1
    heads = rows.select(["topic", "topic_id", "partition"]).take(pa.array(first)).to_pylist()
    columns = zip(
        heads,
        rows["base_offset"].to_numpy()[first].tolist(),
        rows["end_offset"].to_numpy()[last].tolist(),
        (last - first + 1).tolist(),
        np.add.reduceat(numbers_of(rows, "records"), first).tolist(),
        np.add.reduceat(numbers_of(rows, "bytes"), first).tolist(),
        map(Reason, reasons[first].tolist()),
        holder[first].tolist(),
        judged.live[first].tolist(),
        strict=True,
    )
    return [
        Item(
            **head,
            first_offset=base,
            end_offset=end,
            segments=segments,
            records=records,
            bytes=size,
            keep=not reason.goes,
            reason=holds[held] if held >= 0 and holds else WORDS[reason],
            replaced=not live,
        )
        for head, base, end, segments, records, size, reason, held, live in columns
    ]


def totals_of(items: Sequence[Item], *, keep: bool) -> PruneTotals:
    chosen = [item for item in items if item.keep == keep]
    return PruneTotals(
        segments=sum(item.segments for item in chosen),
        records=sum(item.records for item in chosen),
        bytes=sum(item.bytes for item in chosen),
    )

"""Logs of random batches, and readers that find in them what a real one would."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from maxbrod.backup.plan.ranges import Damage, Failure, FailureKind, Outcome, RangeItem
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPIC = "orders"
TOPIC_ID = "Yz0sbGRzQvC6DJMlUkD4Dg"
PARTITION = PartitionId(topic_id=TOPIC_ID, partition=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    base: int
    end: int
    records: int
    damaged: bool = False


def item(start: int, end: int) -> RangeItem:
    return RangeItem(
        topic=TOPIC,
        topic_id=TOPIC_ID,
        partition=PARTITION.partition,
        start=start,
        end=end,
        bytes_per_offset=1.0,
        packed=False,
    )


def part(base: int, end: int, records: int | None = None) -> Slice:
    return Slice(
        path=f"segments/{base}",
        position=0,
        bytes=end - base,
        raw_bytes=end - base,
        codec="none",
        base_offset=base,
        end_offset=end,
        records=end - base if records is None else records,
        min_timestamp=base,
        max_timestamp=end,
        first_leader_epoch=0,
        last_leader_epoch=0,
        digest="crc32c:00000000",
    )


def outcome(start: int, end: int, *slices: Slice, reached: int | None = None, log_start: int = 0) -> Outcome:
    return Outcome(
        item=item(start, end), slices=slices, reached=end if reached is None else reached, log_start_offset=log_start
    )


def read(log: Sequence[Batch], start: int, end: int, *, log_start: int, hole_offsets_min: int = 1) -> Outcome:
    """As a task reads: batches by their base offset, sound ones in slices that end at damage and at wide holes."""
    slices: list[Slice] = []
    damages: list[Damage] = []
    for batch in log:
        if not max(start, log_start) <= batch.base < end:
            continue
        if batch.damaged:
            damages.append(Damage(offset=batch.base, message=f"the batch at {batch.base} is damaged"))
            continue
        apart = not slices or batch.base - slices[-1].end_offset >= hole_offsets_min
        if apart or (damages and damages[-1].offset >= slices[-1].end_offset):
            slices.append(part(batch.base, batch.end, batch.records))
        else:
            last = slices[-1]
            slices[-1] = replace(last, end_offset=batch.end, records=last.records + batch.records)
    return Outcome(
        item=item(start, end), slices=tuple(slices), reached=end, log_start_offset=log_start, damages=tuple(damages)
    )


def read_until(log: Sequence[Batch], whole: Outcome, reached: int, kind: FailureKind) -> Outcome:
    """What the same task reports when it comes no further than `reached`, where a batch begins."""
    found = read(log, whole.item.start, reached, log_start=whole.log_start_offset)
    failure = Failure(kind=kind, message=f"it is {kind}")
    return replace(found, item=whole.item, reached=reached, failure=failure)


@st.composite
def logs(draw: st.DrawFn, *, first: int = 0) -> tuple[list[Batch], int]:
    """Batches from `first` on, some damaged, some with holes between and within; and where the log ends."""
    batches, offset = [], first
    for _ in range(draw(st.integers(0, 12))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 3, 9]))
        length = draw(st.integers(1, 9))
        records = draw(st.sampled_from([length, length, length, 0, length // 2]))
        damaged = draw(st.integers(0, 7)) == 0
        batches.append(Batch(base=offset, end=offset + length, records=records, damaged=damaged))
        offset += length
    return batches, offset + draw(st.sampled_from([0, 0, 4]))

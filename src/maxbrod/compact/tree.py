"""Merges the segments of a tree of the layout parquet, one partition at a time, as its own tool does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.errors import MaxbrodError
from maxbrod.layouts.compaction_limits import CompactionLimits  # noqa: TC001 - pydantic reads the types of what travels
from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.parquet.compaction import DAMAGED, compact_folder, plan_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.layouts.parquet.survey import SegmentRange
    from maxbrod.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeItem:
    """A partition's folder, and what to do with it."""

    folder: str
    topic: str
    partition: int
    limits: CompactionLimits
    now_ms: int
    codec: str | None = None
    level: int | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMerge:
    """Segments that became one, or stayed as they are because one of them is damaged."""

    base_offset: int
    end_offset: int
    segments: int
    bytes: int
    """Those that the segments had before."""
    merged_bytes: int | None = None
    records: int | None = None
    message: str | None = None
    object_name: str | None = None
    offset: int | None = None
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOutcome:
    topic: str
    partition: int
    merges: tuple[TreeMerge, ...]
    left: dict[str, int]
    """The number of segments that stay as they are, by reason."""


def merge_folder(storage: Storage, item: TreeItem) -> TreeOutcome:
    """Merge the segments of one partition. Never raises what concerns it alone."""
    limits, now_ms = item.limits, item.now_ms
    runs: list[tuple[list[SegmentRange], int]] = []
    left: Mapping[str, int] = {}
    failed: dict[int, MaxbrodError] = {}

    def on_damage(run: Sequence[SegmentRange], error: MaxbrodError) -> None:
        failed[run[0].base] = error

    try:
        runs, left = plan_folder(storage, item.folder, limits, now_ms=now_ms)
        options = WriteOptions(codec=item.codec, level=item.level)
        merged = (
            []
            if item.dry_run
            else compact_folder(storage, item.folder, limits, now_ms=now_ms, options=options, on_damage=on_damage)
        )
    except MaxbrodError as error:
        whole = TreeMerge(
            base_offset=runs[0][0][0].base if runs else 0,
            end_offset=runs[-1][0][-1].end if runs else 0,
            segments=sum(len(run) for run, _ in runs),
            bytes=sum(size for _, size in runs),
            message=error.message,
            object_name=error.object_name,
            offset=error.offset,
        )
        return TreeOutcome(topic=item.topic, partition=item.partition, merges=(whole,), left=dict(left))
    found = {each.base_offset: each for each in merged}
    merges = []
    behind = 0
    for run, size in runs:
        base, error_here, new = run[0].base, failed.get(run[0].base), found.get(run[0].base)
        if failed and error_here is None and new is None:
            behind += len(run)
            continue
        merges.append(
            TreeMerge(
                base_offset=base,
                end_offset=run[-1].end,
                segments=len(run),
                bytes=size,
                merged_bytes=None if new is None else new.bytes,
                records=None if new is None else new.records,
                message=None if error_here is None else error_here.message,
                object_name=None if error_here is None else error_here.object_name,
                offset=None if error_here is None else error_here.offset,
                damaged=error_here is not None,
            )
        )
    return TreeOutcome(
        topic=item.topic,
        partition=item.partition,
        merges=tuple(merges),
        left={**left, **({DAMAGED: behind} if behind else {})},
    )

"""Whether a stream can go on where it stands, in an archive that has changed meanwhile. Pure.

An archive only grows, but for three things: a log was cut and written anew, so that the archive took back what the
stream has read; something was pruned before it was read; or it is another archive. None of them is passed over unless
the stream's options accept it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.errors import LogTruncatedError, RefusedError
from maxbrod.table.stream.positions import without

if TYPE_CHECKING:
    from maxbrod.table.stream.positions import Mark, StreamPosition
    from maxbrod.table.stream.view import View

OPERATION: Final = "follow an archive"
ACCEPT: Final = "the option failOnDataLoss=false goes on with what is there"


def resume(view: View, number: int, mark: Mark | None, *, lossy: bool) -> int:
    """The offset from which a partition is read on: that of its mark, unless something was lost."""
    rows = view.rows_of(number)
    if mark is None:
        # What was pruned before anybody read it is no loss of this stream's.
        left = np.flatnonzero(~view.pruned[rows]) + rows.start
        return int(view.base[left[0]]) if left.size else int(view.end[rows.stop - 1])
    first = int(view.base[rows.start])
    if (cut := _cut(view, rows, mark)) is not None:
        if not lossy:
            raise _truncated(view, number, mark, cut)
        return cut
    if lossy:
        return max(mark.end, first)
    if first > mark.end:
        raise lost(_name(view, number), mark.end, first)
    pruned = np.flatnonzero(view.pruned[rows] & (view.end[rows] > mark.end)) + rows.start
    if pruned.size:
        raise lost(_name(view, number), max(mark.end, int(view.base[pruned[0]])), int(view.end[pruned[0]]))
    return mark.end


def check_known(view: View, start: StreamPosition) -> None:
    """RefusedError: a topic that the stream has read is nowhere in the archive."""
    gone = next((each for each in start.marks if each.topic_id not in view.known), None)
    if gone is not None:
        raise RefusedError(
            f"the archive knows nothing of a topic that was read up to offset {start.marks[gone].end}",
            operation=OPERATION,
            object_name=str(gone),
            hint=f"it seems to be another archive: give the stream a new checkpoint; {ACCEPT}",
        )


def lost(name: str, first: int, end: int) -> RefusedError:
    return RefusedError(
        f"offsets {first} to {end - 1} left the archive before the stream has read them",
        operation=OPERATION,
        object_name=name,
        offset=first,
        hint=ACCEPT,
    )


def _cut(view: View, rows: slice, mark: Mark) -> int | None:
    """Where another history begins below the mark. Whoever leads a log after it was cut has a higher epoch."""
    below = slice(rows.start, rows.start + int(np.searchsorted(view.base[rows], mark.end)))
    newer = np.flatnonzero(view.data[below] & (view.first_epoch[below] > mark.epoch)) + below.start
    for row in newer:
        first, end = int(view.base[row]), min(int(view.end[row]), mark.end)
        # What was mended was never read.
        if without([(first, end)], mark.open):
            return first
    last = int(view.end[rows.stop - 1])
    return last if last < mark.end else None


def _truncated(view: View, number: int, mark: Mark, cut: int) -> LogTruncatedError:
    return LogTruncatedError(
        f"the log was cut at offset {cut}, and the archive took back what the stream has read from there to {mark.end}",
        operation=OPERATION,
        object_name=_name(view, number),
        offset=cut,
        hint=f"undo in the stream's target what came from there; {ACCEPT}, and reads the other history from {cut} on",
    )


def _name(view: View, number: int) -> str:
    each = view.partitions[number]
    return f"{view.topics[each.topic_id]}-{each.partition}"

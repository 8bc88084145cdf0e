"""One partition from its copies on several disks: its segments, where they end, and faults.

Each copy is loaded as its broker would load it. Two copies that hold an offset under the same leader epoch hold the
same record there, because only one leader writes in an epoch. Copies are therefore compared by their epochs alone. Only
those files are read again that must be cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from maxbrod.layouts.foreign import Fault, ForeignGap, ForeignSegment
from maxbrod.layouts.logdir.format import (
    CLEANED,
    EPOCHS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    METADATA,
    DirectoryTree,
    PartitionFolder,
    read_epochs,
    read_offsets,
    read_topic_id,
)
from maxbrod.layouts.logdir.reader import MIDDLE_UNREAD, OFFSET_MAX, Fate, ScannedLog, begin_within, scan, scan_ends
from maxbrod.model import AbortedTransaction, TopicPartition
from maxbrod.storage.interface import Storage

Decide: TypeAlias = "Callable[[OpenTransaction], Fate]"
Notes: TypeAlias = "Mapping[str, Mapping[str, Mapping[TopicPartition, int]]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A partition in one log directory. Logs are in order, as a broker would load them."""

    folder: PartitionFolder
    logs: tuple[ScannedLog, ...]
    topic_id: str | None = None
    epochs: tuple[tuple[int, int], ...] = field(default=())
    """Epochs and their first offsets, as the broker has recorded them, otherwise as in the batches."""
    high_watermark: int | None = None
    log_start: int = 0
    cleaned: int = 0
    """The offset up to which the cleaner has compacted it."""

    @property
    def start(self) -> int:
        """The first offset that it holds."""
        return max(next((log.base_offset for log in self.logs if not log.empty), self.end), self.log_start)

    @property
    def end(self) -> int:
        return max((log.end_offset for log in self.logs), default=self.log_start)

    @property
    def last_epoch(self) -> int:
        return max((epoch for log in self.logs for epoch, _ in log.epochs), default=-1)


def lineage(noted: Sequence[tuple[int, int]], logs: Sequence[ScannedLog], end: int) -> tuple[tuple[int, int], ...]:
    """Epochs and their first offsets. The broker's notes count, too: compaction may have removed the first batches."""
    starts = {epoch: start for epoch, start in noted if start < end}
    for log in logs:
        for epoch, start in log.epochs:
            starts[epoch] = min(starts.get(epoch, start), start)
    return tuple(sorted(starts.items(), key=lambda item: item[1]))


def swapped(logs: Sequence[ScannedLog]) -> list[ScannedLog]:
    """The logs without those that a finished cleaning was about to replace, as a broker starts."""
    swaps = [log for log in logs if log.file.swap]
    if not swaps:
        return list(logs)
    low = min(swap.file.base_offset for swap in swaps)
    high = max(swap.end_offset for swap in swaps)
    return [log for log in logs if log.file.swap or not low <= log.file.base_offset < max(high, low + 1)]


def furthest(copies: Sequence[Copy]) -> Copy:
    """The copy that an election among all of them must choose: the longest one of the latest epoch."""
    return max(copies, key=lambda copy: (copy.last_epoch, copy.end, copy.high_watermark or 0, -copy.start))


def agreed_until(copy: Copy, chosen: Copy) -> int:
    """The first offset that the copy holds under another epoch than the chosen one or after its end; else its end."""
    low, high = max(copy.start, chosen.start), min(copy.end, chosen.end)
    edges = {low, *(start for copy in (copy, chosen) for _, start in copy.epochs if low < start < high)}
    for edge in sorted(edges):
        if edge < high and _epoch_at(copy, edge) != _epoch_at(chosen, edge):
            return edge
    return copy.end if copy.end <= chosen.end else max(high, low)


def _epoch_at(copy: Copy, offset: int) -> int:
    before = bisect_right(copy.epochs, offset, key=lambda epoch: epoch[1])
    return copy.epochs[before - 1][0] if before else -1


class OpenTransaction(NamedTuple):
    """A transaction without a marker in the log."""

    producer_id: int
    producer_epoch: int
    first_offset: int


def fold(logs: Sequence[ScannedLog]) -> tuple[list[AbortedTransaction], list[OpenTransaction]]:
    """Aborted transactions, and open ones in order of offsets.

    A transaction that began before the log counts from the log's first offset on.
    """
    first = next((log.base_offset for log in logs), 0)
    open_since: dict[int, OpenTransaction] = {}
    ended: dict[int, int] = {}
    aborted: list[AbortedTransaction] = []
    for producer_id, epoch, offset, fate in (event for log in logs for event in log.events):
        if fate is None:
            open_since.setdefault(producer_id, OpenTransaction(producer_id, epoch, offset))
            continue
        begun = open_since.pop(producer_id, None)
        began = ended.get(producer_id, first) if begun is None else begun.first_offset
        ended[producer_id] = offset + 1
        if fate is Fate.ABORTED:
            aborted.append(AbortedTransaction(producer_id=producer_id, first_offset=began, last_offset=offset))
    return aborted, sorted(open_since.values(), key=lambda transaction: transaction.first_offset)


def marker_after(logs: Sequence[ScannedLog], producer_id: int, offset: int) -> Fate | None:
    """The end of a transaction by its producer's first marker from an offset on; None if there is none."""
    events = (event for log in logs if log.end_offset > offset for event in log.events)
    return next((fate for who, _, at, fate in events if who == producer_id and at >= offset and fate), None)


def touching(
    aborted: Sequence[AbortedTransaction], base_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Return the transactions that reach into a range, as far as they do."""
    return tuple(
        replace(transaction, last_offset=min(transaction.last_offset, end_offset - 1))
        for transaction in aborted
        if transaction.first_offset < end_offset and transaction.last_offset >= base_offset
    )


def read_notes(storage: Storage, tree: DirectoryTree, faults: list[Fault]) -> Notes:
    """The checkpoints of brokers: an offset for each partition, by file and log directory."""
    return {
        name: {
            root: read_offsets(storage, f"{root}{name}", faults) if name in names else {}
            for root, names in tree.roots.items()
        }
        for name in (HIGH_WATERMARKS, LOG_STARTS, CLEANED)
    }


def load_copy(
    storage: Storage, folder: PartitionFolder, notes: Notes, *, check_crc: bool = True
) -> tuple[Copy, list[Fault]]:
    faults: list[Fault] = []
    watermark, log_start, cleaned = (
        notes[name][folder.root].get(folder.where) for name in (HIGH_WATERMARKS, LOG_STARTS, CLEANED)
    )
    noted = read_epochs(storage, f"{folder.path}/{EPOCHS}", faults) if EPOCHS in folder.names else []
    if check_crc or cleaned:
        logs = [scan(storage, file, check_crc=check_crc) for file in folder.loaded()]
    else:
        logs = _scan_some(storage, folder, noted)
    logs = sorted(swapped(logs), key=lambda log: log.file.base_offset)
    known = read_topic_id(storage, f"{folder.path}/{METADATA}", faults) if METADATA in folder.names else None
    end = max((log.end_offset for log in logs), default=0)
    copy = Copy(
        folder=folder,
        logs=tuple(logs),
        topic_id=known,
        epochs=lineage(noted, logs, end),
        high_watermark=watermark,
        log_start=log_start or 0,
        cleaned=cleaned or 0,
    )
    return copy, faults


def _scan_some(storage: Storage, folder: PartitionFolder, noted: Sequence[tuple[int, int]]) -> list[ScannedLog]:
    """The logs without their checksums, and without the middle of large files if nothing is to be seen there."""
    logs = []
    for file in folder.loaded():
        index = f"{file.path.rpartition('/')[2].removesuffix('.log')}.index"
        ends = scan_ends(storage, file, noted) if index in folder.names else None
        logs.append(ends or scan(storage, file, check_crc=False))
    # A transaction may continue in the next file. A gap between two files is explained by holes within the first.
    apart = any(before.end_offset != after.base_offset for before, after in pairwise(logs))
    if apart or any(log.events for log in logs):
        return [log if log.middle_read else scan(storage, log.file, check_crc=False) for log in logs]
    return logs


@dataclass(slots=True, kw_only=True)
class Joined:
    segments: list[ForeignSegment] = field(default_factory=list)
    gaps: list[ForeignGap] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    end: int = 0


def join(
    storage: Storage, copies: Sequence[Copy], *, uncommitted_tail: bool, decide: Decide = lambda _: Fate.UNKNOWN
) -> Joined:
    """The copy that reaches furthest, holes filled from copies that agree, up to the high watermark or to the end."""
    joined = Joined()
    chosen = furthest(copies)
    others = _agreeing(chosen, copies, joined)
    watermarks = [copy.high_watermark for copy in (chosen, *others) if copy.high_watermark is not None]
    watermark = max(watermarks, default=None)
    end = chosen.end
    if watermark is not None and watermark < end and not uncommitted_tail:
        # Brokers record the watermark only every five seconds, so acknowledged records may be above it.
        message = (
            f"offsets {watermark} to {end - 1} are above the recorded high watermark and are left out; after a crash "
            "acknowledged records may be among them: --uncommitted-tail includes them (with convert: --from-option "
            "uncommitted_tail=true)"
        )
        joined.faults.append(Fault(path=chosen.folder.path, message=message, offset=watermark))
        end = watermark
    joined.end = end
    logs = _filled(storage, joined, _cut(storage, chosen, end), others, end)
    _report_torn(joined, chosen, logs, watermark)
    if watermark is not None and chosen.end < watermark:
        message = f"the log ends at {chosen.end}, where its broker had committed up to {watermark}"
        joined.faults.append(Fault(path=chosen.folder.path, message=message, offset=chosen.end))
    _report_gaps(joined, chosen, logs)
    logs = [log for log in logs if not log.empty]
    _describe(joined, chosen.folder.where, logs, _aborted(joined, chosen, logs, decide))
    return joined


def _agreeing(chosen: Copy, copies: Sequence[Copy], joined: Joined) -> list[Copy]:
    """The copies that never contradict the chosen one. The others are faults."""
    agreeing = []
    for copy in copies:
        if copy is chosen:
            continue
        until = agreed_until(copy, chosen)
        if until >= copy.end:
            agreeing.append(copy)
            continue
        lost = copy.high_watermark is not None and copy.high_watermark > until
        message = (
            f"offsets {until} to {copy.end - 1} were written under other leader epochs than in {chosen.folder.path}, "
            f"which is used" + (f"; their broker had them as committed up to {copy.high_watermark}" if lost else "")
        )
        joined.faults.append(Fault(path=copy.folder.path, message=message, offset=until, fatal=lost))
    return agreeing


def _cut(storage: Storage, copy: Copy, end: int) -> list[ScannedLog]:
    """The logs of a copy from its log start up to an offset. Files that are only partly included are read again."""
    logs = []
    first = copy.logs[0] if copy.logs else None
    for log in copy.logs:
        if log.empty or log.end_offset <= copy.log_start or log.base_offset >= end:
            continue
        if log.base_offset < copy.log_start or log.end_offset > end:
            cut = scan(storage, log.file, first=copy.log_start, end=end, check_crc=log.checked)
            if not cut.empty and cut.base_offset < copy.log_start:
                begin_within(storage, cut, copy.log_start)
            logs += [] if cut.empty else [cut]
        else:
            logs.append(log)
    if logs and first is not None and first.empty and first.damage and first.file.base_offset >= copy.log_start:
        # Damage has left nothing of the first file: with it, its contents count as missing.
        logs.insert(0, first)
    return logs


def _filled(
    storage: Storage, joined: Joined, logs: Sequence[ScannedLog], others: Sequence[Copy], end: int
) -> list[ScannedLog]:
    """The logs, with parts of other copies where damage or a missing file has left a hole."""
    found: list[ScannedLog] = []
    for before, after in zip(logs, (*logs[1:], None), strict=False):
        found.append(before)
        hole_end = end if after is None else after.base_offset
        if before.end_offset < hole_end and (before.damage is not None or not _within_file(before, after)):
            parts = _fill(storage, before.end_offset, hole_end, others)
            if parts:
                message = f"offsets {before.end_offset} to {hole_end - 1} are taken from {parts[0].file.path}"
                joined.faults.append(
                    Fault(path=before.file.path, message=message, offset=before.end_offset, fatal=False)
                )
            found += parts
    return found


def _fill(storage: Storage, first: int, end: int, others: Sequence[Copy]) -> list[ScannedLog]:
    for copy in others:
        parts: list[ScannedLog] = []
        reached = first
        for log in copy.logs:
            if not log.empty and log.end_offset > reached and log.base_offset < end:
                part = scan(storage, log.file, first=reached, end=end, check_crc=log.checked)
                if not part.empty and part.base_offset >= reached:
                    parts.append(part)
                    reached = part.end_offset
        if parts:
            return parts
    return []


def _within_file(before: ScannedLog, after: ScannedLog | None) -> bool:
    """True if a hole is within one file, between sound batches. Only compaction makes such holes."""
    return after is not None and after.file.base_offset <= before.end_offset


def _report_torn(joined: Joined, chosen: Copy, logs: Sequence[ScannedLog], watermark: int | None) -> None:
    """Reports bytes that a crash has left after the last sound batch. Between segments, the gap is reported instead."""
    last = next((log for log in reversed(chosen.logs) if log.damage is not None or not log.empty), None)
    if last is None or last.damage is None:
        return
    reached = max((log.end_offset for log in logs), default=last.end_offset)
    message = (
        f"{last.file.size - last.damage.position} bytes from byte {last.damage.position} on are not sound batches "
        f"({last.damage.message}) and are skipped; the log ends at offset {reached}"
    )
    lost = reached < min(joined.end, chosen.end) or (watermark is not None and reached < watermark)
    joined.faults.append(Fault(path=last.file.path, message=message, offset=reached, fatal=lost))


def _report_gaps(joined: Joined, chosen: Copy, logs: Sequence[ScannedLog]) -> None:
    for before, after in pairwise(logs):
        first, end = before.end_offset, after.base_offset
        if first >= end:
            continue
        compacted = before.damage is None and (
            _within_file(before, after) or end <= chosen.cleaned or before.tally.records < first - before.base_offset
        )
        reason = "compacted" if compacted else "unexplained" if before.damage is None else "corrupt"
        joined.gaps.append(ForeignGap(where=chosen.folder.where, base_offset=first, end_offset=end, reason=reason))
        if not compacted:
            why = "no file has them" if before.damage is None else before.damage.message
            message = f"offsets {first} to {end - 1} are in none of the directories: {why}"
            joined.faults.append(Fault(path=before.file.path, message=message, offset=first))


def _aborted(joined: Joined, chosen: Copy, logs: Sequence[ScannedLog], decide: Decide) -> list[AbortedTransaction]:
    """Transactions with an abort marker, and open ones that were not committed. Every open one is reported."""
    aborted, undecided = fold(logs)
    end = logs[-1].end_offset if logs else 0
    for transaction in undecided:
        producer_id, _, first = transaction
        who = f"a transaction of producer {producer_id}"
        # If the log is cut, the marker may be after the cut.
        marker = marker_after(chosen.logs, producer_id, end)
        verdict = marker or decide(transaction)
        said = "was prepared" if marker is None else "is marked above"
        if verdict is Fate.COMMITTED:
            message = f"{who} {said} to commit, and has no marker in the log; its records from offset {first} on count"
        else:
            aborted.append(AbortedTransaction(producer_id=producer_id, first_offset=first, last_offset=OFFSET_MAX))
            lost = "" if verdict is Fate.UNKNOWN else ", as it was not committed"
            message = (
                f"{who} has no marker in the log; its records from offset {first} on count as aborted, up to offset "
                f"{end - 1}{lost}"
            )
        fatal = verdict is Fate.UNKNOWN
        joined.faults.append(Fault(path=chosen.folder.path, message=message, offset=first, fatal=fatal))
    return aborted


def _describe(
    joined: Joined, where: TopicPartition, logs: Sequence[ScannedLog], aborted: Sequence[AbortedTransaction]
) -> None:
    for log in logs:
        tally = log.tally
        joined.segments.append(
            ForeignSegment(
                where=where,
                path=log.file.path,
                base_offset=log.base_offset,
                end_offset=log.end_offset,
                records=tally.records,
                bytes=log.stop - log.position,
                # The first record of a batch need not be its oldest, and single records are not read here.
                min_timestamp=None,
                max_timestamp=tally.max_timestamp if log.middle_read else None,
                codec=tally.codec,
                first_leader_epoch=log.epochs[0][0],
                last_leader_epoch=log.epochs[-1][0],
                aborted=touching(aborted, log.base_offset, log.end_offset),
                reason="compacted",
                details={
                    "position": log.position,
                    **({} if log.log_start is None else {"log_start": log.log_start}),
                    **({} if log.middle_read else {MIDDLE_UNREAD: [list(pair) for pair in log.epochs]}),
                },
            )
        )

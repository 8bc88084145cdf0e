"""Holds: what nobody may prune, compact by key or erase until the hold is released.

A hold is an object `holds/<id>.json`, so that it survives the loss of the catalog. Releasing it adds the object
`holds/<id>.released.json`: who held what, and who released it, stays known. `add_hold` also commits a run. A verb that
takes records away reads all holds right before it commits; if a hold was added after that, the verb's commit is refused
because the catalog has changed, and it plans again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod import strict_json
from maxbrod.archive.archive import HOLDS, Archive
from maxbrod.archive.checked_documents import decode_document, encode_document, unreadable
from maxbrod.archive.selection import select_topics
from maxbrod.archive.snapshot_document import Snapshot
from maxbrod.archive.snapshots import find_run, read_snapshot
from maxbrod.archive.upkeep import commit_run
from maxbrod.catalog.rows import newest_times
from maxbrod.catalog.schema import Kind
from maxbrod.errors import (
    CorruptDataError,
    MaxbrodError,
    ObjectExistsError,
    RefusedError,
    UnsupportedFormatError,
    UsageError,
    naming,
)
from maxbrod.model import PartitionId, now_ms
from maxbrod.storage.interface import Storage
from maxbrod.text import human_time

HOLD_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "kind", "details"),
    *("min_timestamp", "max_timestamp", "min_timestamp_exact"),
)
"""The columns of rows that `Holds` reads."""
_DOCUMENT: Final = "maxbrod.hold"
_NOUN: Final = "a hold"
_HINT: Final = "nothing was changed; restore the object from a copy, or release the hold by deleting it"
_NAME: Final = re.compile(rf"{HOLDS}/([0-9a-f]{{16}})(\.released)?\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    at_ms: int
    who: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A hold on the records that match all of its conditions. A hold without conditions holds everything."""

    id: str
    at_ms: int
    who: str
    why: str
    topics: tuple[str, ...] = ()
    """Names, globs and regular expressions; none: all topics."""
    since_ms: int | None = None
    until_ms: int | None = None
    """Records with a timestamp in [since, until)."""
    run_id: str | None = None
    """The archive as this run left it. The run itself stays too."""
    released: Release | None = None

    def __str__(self) -> str:
        return f"hold {self.id} of {self.who}: {self.why}"

    @property
    def what(self) -> str:
        """Its conditions in words."""
        parts = [", ".join(self.topics) or "all topics"]
        parts += [f"records from {human_time(self.since_ms)} on"] if self.since_ms is not None else []
        parts += [f"records before {human_time(self.until_ms)}"] if self.until_ms is not None else []
        parts += [f"as run {self.run_id} left it"] if self.run_id is not None else []
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """The holds that are in force, and what the held runs recorded."""

    active: tuple[Hold, ...]
    snapshots: Mapping[str, Snapshot] = field(default_factory=dict)
    """By run id. A held run whose snapshot cannot be read holds everything of its topics."""

    @property
    def runs(self) -> frozenset[str]:
        """The ids of runs that must stay."""
        return frozenset(hold.run_id for hold in self.active if hold.run_id is not None)

    def holders(self, rows: pa.Table) -> NDArray[np.int64]:
        """For each row of data the number of the first hold in `active` that holds it, or -1.

        `rows` have `HOLD_COLUMNS` and may be of kind data, gap or replaced. A row that may have a held record is held.
        """
        found = np.full(rows.num_rows, -1, np.int64)
        for number in reversed(range(len(self.active))):
            found[self._mask(self.active[number], rows)] = number
        return found

    def _mask(self, hold: Hold, rows: pa.Table) -> NDArray[np.bool_]:
        mask = np.ones(rows.num_rows, np.bool_)
        if hold.topics:
            names = dict.fromkeys(pc.unique(rows["topic"]).to_pylist(), False)
            chosen = pa.array(select_topics(names, hold.topics, internal=True).chosen, pa.string())
            mask &= _numpy(pc.is_in(rows["topic"], value_set=chosen))
        if hold.since_ms is not None:
            mask &= _numpy(pc.fill_null(pc.greater_equal(newest_times(rows), hold.since_ms), True))
        if hold.until_ms is not None:
            later = pc.and_kleene(rows["min_timestamp_exact"], pc.greater_equal(rows["min_timestamp"], hold.until_ms))
            later = pc.and_kleene(later, pc.is_valid(newest_times(rows)))
            mask &= ~_numpy(pc.fill_null(later, False))
        snapshot = None if hold.run_id is None else self.snapshots.get(hold.run_id)
        if snapshot is not None:
            mask &= _existed(rows, snapshot, mask)
        return mask


def _existed(rows: pa.Table, snapshot: Snapshot, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A mask of the rows that a query as of the run may return."""
    found = np.zeros(rows.num_rows, np.bool_)
    candidates = np.flatnonzero(mask)
    chosen = rows.select(["topic_id", "partition", "base_offset", "kind", "details"]).take(pa.array(candidates))
    columns = (chosen[name].to_pylist() for name in chosen.column_names)
    for place, (topic_id, partition, base, kind, details) in zip(candidates, zip(*columns, strict=True), strict=True):
        where = PartitionId(topic_id=topic_id, partition=partition)
        there = base < snapshot.ends.get(where, 0)
        if there and kind == Kind.REPLACED:
            there = strict_json.parse(details)["revision"] > snapshot.revisions.get(where, 0)
        found[place] = there
    return found


def _numpy(mask: Any) -> NDArray[np.bool_]:  # noqa: ANN401 - an Arrow array
    array: NDArray[np.bool_] = mask.to_numpy(zero_copy_only=False) if isinstance(mask, pa.Array) else mask.to_numpy()
    return array


def read_holds(storage: Storage) -> list[Hold]:
    """Every hold, released ones included, in the order in which they were added.

    CorruptDataError: one cannot be read. Then nothing may be taken away: it may hold anything.
    """
    found: dict[str, Hold] = {}
    releases: dict[str, Release] = {}
    for info in storage.list(HOLDS):
        name = _NAME.fullmatch(info.path)
        if name is None:
            continue
        with naming(storage.name_of(info.path)):
            document = decode_document(_DOCUMENT, bytes(storage.get(info.path)), noun=_NOUN, hint=_HINT)
            try:
                if name[2]:
                    releases[name[1]] = strict_json.value_of(Release, document)
                else:
                    found[name[1]] = replace(strict_json.value_of(Hold, document), released=None)
            except ValueError as error:
                raise unreadable(_NOUN, str(error), _HINT) from None
    held = (replace(hold, id=hold_id, released=releases.get(hold_id)) for hold_id, hold in found.items())
    return sorted(held, key=lambda hold: (hold.at_ms, hold.id))


def active_holds(archive: Archive) -> Holds:
    """The holds in force now. Call it right before a commit that takes records away."""
    active = tuple(hold for hold in read_holds(archive.storage) if hold.released is None)
    snapshots: dict[str, Snapshot] = {}
    wanted = {hold.run_id for hold in active if hold.run_id is not None}
    for run in archive.catalog.runs() if wanted else ():
        if run.run_id in wanted and run.snapshot is not None:
            # An unreadable snapshot limits nothing: everything of the topics is held.
            with suppress(CorruptDataError, UnsupportedFormatError, UsageError):
                snapshots[run.run_id] = read_snapshot(archive.storage, run)
    return Holds(active=active, snapshots=snapshots)


def add_hold(
    archive: Archive,
    *,
    who: str,
    why: str,
    topics: Sequence[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
    run: str | None = None,
) -> Hold:
    """Hold records. When this returns, no commit that was planned before can take them away any more."""
    run_id = None
    if run is not None:
        found = find_run(archive.catalog.runs(), run)
        if found.snapshot is None:
            raise UsageError(f"the run {found.run_id} recorded no snapshot", hint="name a run of 'maxbrod backup'")
        run_id = found.run_id
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise UsageError("the time range of the hold is empty", hint="--since must be before --until")
    select_topics({}, topics)  # an invalid pattern is refused before anything is written
    hold = Hold(
        id=secrets.token_hex(8),
        at_ms=now_ms(),
        who=who,
        why=why,
        topics=tuple(topics),
        since_ms=since_ms,
        until_ms=until_ms,
        run_id=run_id,
    )
    fields = asdict(hold)
    del fields["released"]
    archive.storage.put(f"{HOLDS}/{hold.id}.json", _encode(fields))
    added = {"command": "hold", "added": hold.id, "who": who, "why": why}
    _record(
        archive,
        added,
        f"hold {hold.id} is in force, but a prune or a compaction by key that runs now may not have seen it: "
        "look at its report, or add the hold again",
    )
    return hold


def release_hold(archive: Archive, hold_id: str, *, who: str, why: str) -> Hold:
    """UsageError: no such hold is in force."""
    named = [hold for hold in read_holds(archive.storage) if hold.id.startswith(hold_id)]
    matching = [hold for hold in named if hold.released is None]
    if not matching and len(named) == 1 and named[0].released is not None:
        raise UsageError(f"hold {named[0].id} was released before, by {named[0].released.who}: {named[0].released.why}")
    if len(matching) != 1 or not hold_id:
        raise UsageError(
            f"{len(matching) or 'no'} holds of this archive match {hold_id!r}", hint="see 'maxbrod hold list'"
        )
    release = Release(at_ms=now_ms(), who=who, why=why)
    try:
        archive.storage.put(f"{HOLDS}/{matching[0].id}.released.json", _encode(asdict(release)))
    except ObjectExistsError:
        raise RefusedError("somebody else has just released this hold", object_name=matching[0].id) from None
    released = {"command": "hold", "released": matching[0].id, "who": who, "why": why}
    _record(archive, released, f"hold {matching[0].id} is released; only 'maxbrod ls --runs' does not show it")
    return replace(matching[0], released=release)


def _record(archive: Archive, statistics: Mapping[str, Any], hint: str) -> None:
    """Commit a run, if the layout has runs. `hint` says what is done if that fails."""
    if not archive.is_native:
        return
    try:
        commit_run(archive, statistics)
    except MaxbrodError as error:
        error.hint = hint
        raise


def _encode(fields: Mapping[str, Any]) -> bytes:
    return encode_document(_DOCUMENT, fields)

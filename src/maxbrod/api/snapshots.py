"""Reads the snapshots of runs: the cluster as it was, and how far the archive reached then."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cramjam

from maxbrod.catalog.rows import PartitionId
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.catalog.rows import Run
    from maxbrod.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    run_id: str
    taken_at_ms: int
    cluster: Mapping[str, Any]
    ends: Mapping[PartitionId, int]
    topics: Mapping[str, str]

    def topic_configs(self, topic_id: str) -> Mapping[str, str | None] | None:
        topics = self.cluster.get("topics", ())
        return next((topic["configs"] for topic in topics if topic["topic_id"] == topic_id), None)


def find_run(runs: Sequence[Run], run_id: str) -> Run:
    """By its id, or by the beginning of it where that is unambiguous; `latest` is the last one."""
    matching = [run for run in runs if run.run_id == run_id] or [run for run in runs if run.run_id.startswith(run_id)]
    if run_id == "latest":
        matching = list(runs[-1:])
    if len(matching) != 1:
        raise UsageError(
            f"{len(matching) or 'no'} runs of this archive are called {run_id!r}", hint="see 'maxbrod ls --runs'"
        )
    return matching[0]


def last_snapshot_run(runs: Sequence[Run]) -> Run | None:
    """The last run that recorded the cluster; others, such as a compaction of segments, do not."""
    return next((run for run in reversed(runs) if run.snapshot is not None), None)


def read_snapshot(storage: Storage, run: Run) -> Snapshot:
    if run.snapshot is None:
        raise UsageError(f"the run {run.run_id} recorded no snapshot", hint="name a run of 'maxbrod backup'")
    return _decode(bytes(storage.get(run.snapshot)), name=storage.name_of(run.snapshot))


def _decode(data: bytes, *, name: str) -> Snapshot:
    try:
        document = json.loads(bytes(cramjam.zstd.decompress(data)))
        ends = {
            PartitionId(topic_id=topic_id, partition=partition): end
            for topic_id, partitions in document["ends"].items()
            for partition, end in enumerate(partitions)
            if end is not None
        }
        return Snapshot(
            run_id=document["run_id"],
            taken_at_ms=document["taken_at_ms"],
            cluster=document["cluster"],
            ends=ends,
            topics=document["topics"],
        )
    except (cramjam.DecompressionError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError("a snapshot cannot be read", object_name=name) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What to look at an archive with: now, or as of a run."""

    as_of: str | None
    """The run that was asked for; None: now."""
    run: Run | None
    """That run, or the last one that recorded a snapshot."""
    snapshot: Snapshot | None

    @property
    def ends(self) -> Mapping[PartitionId, int] | None:
        """How far to look; None: at everything."""
        return None if self.as_of is None or self.snapshot is None else self.snapshot.ends

    @property
    def topics(self) -> Mapping[str, str]:
        """The names of the topics that the cluster had, by id."""
        return {} if self.snapshot is None else self.snapshot.topics


def find_moment(storage: Storage, runs: Sequence[Run], as_of: str | None) -> Moment:
    """Looking at the present goes on without a snapshot that cannot be read: `maxbrod check` is there to complain."""
    if as_of is not None:
        run = find_run(runs, as_of)
        return Moment(as_of=run.run_id, run=run, snapshot=read_snapshot(storage, run))
    last = last_snapshot_run(runs)
    snapshot = None
    with suppress(CorruptDataError, ObjectNotFoundError):
        snapshot = None if last is None else read_snapshot(storage, last)
    return Moment(as_of=None, run=last, snapshot=snapshot)

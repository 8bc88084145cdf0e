"""The ranges of a mounted archive: where each partition begins and ends, and which topics there are.

A snapshot is committed together with the rows that it describes. While its commit is the last one, it says all of this,
and no row is read: an archive has millions. Else one look at a few columns of all rows says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Self, TypeAlias

from maxbrod.archive.snapshot_document import NEVER, PartitionNumbers
from maxbrod.archive.snapshots import (
    Moment,
    describes_rows,
    find_moment,
    known_topics,
    last_snapshot_run,
    topics_in_snapshot,
)
from maxbrod.bounds import count_partitions
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.queries import topics_in

if TYPE_CHECKING:
    import pyarrow as pa

    from maxbrod.archive.archive import Archive
    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.model import PartitionId

_Numbers: TypeAlias = Mapping[str, Sequence[int | None]]
"""By topic id, a list by partition number; None: the archive does not have the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """The first offset and the end of each archived partition, data and gaps together."""

    firsts: _Numbers
    ends: _Numbers
    unsure: Mapping[str, frozenset[int]] | None = None
    """Partitions that may have nothing but gaps, so that no batch is where they begin; None: any may."""

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> Self:
        """What a snapshot says of the rows that it describes."""
        # It has the same number for a partition without batches and for batches without a leader epoch.
        unsure = {
            topic_id: frozenset(number for number, epoch in enumerate(epochs) if epoch == NEVER)
            for topic_id, epochs in _lists(snapshot.leader_epochs).items()
            if NEVER in epochs
        }
        return cls(firsts=_lists(snapshot.firsts), ends=_lists(snapshot.ends), unsure=unsure)

    @classmethod
    def of_spans(cls, spans: pa.Table) -> Self:
        """What `Queries.spans` says. A partition with nothing but gaps begins at its end."""
        names = ("topic_id", "partition", "base_offset", "end_offset", "last_leader_epoch")
        rows = list(zip(*(spans[name].to_pylist() for name in names), strict=True))
        counts = count_partitions((topic_id, partition) for topic_id, partition, *_ in rows)
        firsts: dict[str, list[int | None]] = {topic_id: [None] * count for topic_id, count in counts.items()}
        ends: dict[str, list[int | None]] = {topic_id: [None] * count for topic_id, count in counts.items()}
        for topic_id, partition, first, end, epoch in rows:
            firsts[topic_id][partition] = end if epoch is None else first
            ends[topic_id][partition] = end
        return cls(firsts=firsts, ends=ends, unsure={})

    def of(self, topic_id: str, partition: int) -> tuple[int, int]:
        """An empty range if the archive does not have the partition."""
        end = _number(self.ends, topic_id, partition)
        first = _number(self.firsts, topic_id, partition)
        return (0, 0) if end is None else (end if first is None else min(first, end), end)

    def is_unsure(self, topic_id: str, partition: int) -> bool:
        """True if only rows can tell whether the partition has batches."""
        return self.unsure is None or partition in self.unsure.get(topic_id, ())

    def counts(self) -> Iterator[tuple[str, int]]:
        """The number of partitions of each topic id."""
        return ((topic_id, len(ends)) for topic_id, ends in self.ends.items())

    def cut(self, ends: _Numbers) -> Ranges:
        """The partitions that have one of these ends, up to it."""
        return Ranges(firsts=self.firsts, ends=ends)

    def with_empty(self, ends: _Numbers) -> Ranges:
        """These ranges, and empty ones at the ends of partitions that they lack."""
        filled = dict(self.ends)
        for topic_id, others in ends.items():
            own = filled.get(topic_id, ())
            if len(own) < len(others) or None in own:
                both = zip_longest(own, others)
                filled[topic_id] = [other if end is None else end for end, other in both]
        return replace(self, ends=filled)


def _number(numbers: _Numbers, topic_id: str, partition: int) -> int | None:
    found = numbers.get(topic_id, ())
    return found[partition] if 0 <= partition < len(found) else None


def _lists(numbers: Mapping[PartitionId, int | None]) -> _Numbers:
    """The lists of a snapshot's numbers. Only those that were never stored are in another form."""
    if isinstance(numbers, PartitionNumbers):
        return numbers.lists
    counts = count_partitions((place.topic_id, place.partition) for place in numbers)
    lists: dict[str, list[int | None]] = {topic_id: [None] * count for topic_id, count in counts.items()}
    for place, number in numbers.items():
        lists[place.topic_id][place.partition] = number
    return lists


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveScope:
    """The moment that a mount shows, and what the archive had then."""

    moment: Moment
    names: Mapping[str, str]
    """The name of every topic id."""
    newest: frozenset[str]
    """The ids that names without an id stand for."""
    ranges: Ranges


def scope_of(archive: Archive, as_of: str | None, held: Ranges | None = None) -> ArchiveScope:
    """Look at an archive. `held`: the ends of an older version of it, beyond which no log may go."""
    catalog = archive.catalog
    runs = catalog.runs()
    last = last_snapshot_run(runs)
    version = catalog.version if isinstance(catalog, Catalog) else None
    described = last is not None and last.commit is not None and last.commit == version
    # A snapshot of many partitions takes as long to parse as few columns of many rows take to read: both at once.
    with ThreadPoolExecutor(1) as pool:
        read = None if described and as_of is None else pool.submit(catalog.spans)
        moment = find_moment(archive.storage, runs, as_of)
        exact = _described(moment, version) if moment.run == last else None
        if exact is not None:
            return _scope(moment, *exact, held)
        spans = catalog.spans() if read is None else read.result()
    if moment.as_of is None:
        topics = known_topics(catalog, moment, None, rows=topics_in(spans))
    else:
        topics = known_topics(catalog, moment, moment.revisions_in(catalog))
    return _scope(moment, *topics, Ranges.of_spans(spans), held)


def _described(moment: Moment, version: int | None) -> tuple[dict[str, str], set[str], Ranges] | None:
    """The topics and ranges by a snapshot that says all that the rows of this version would say."""
    snapshot, run = moment.snapshot, moment.run
    if version is None or snapshot is None or run is None or not describes_rows(snapshot, run, version=version):
        return None
    topics = topics_in_snapshot(moment)
    return None if topics is None else (*topics, Ranges.of_snapshot(snapshot))


def _scope(
    moment: Moment, names: Mapping[str, str], newest: set[str], found: Ranges, held: Ranges | None
) -> ArchiveScope:
    if held is not None:
        found = found.cut(held.ends)
    ends = {} if moment.snapshot is None else _lists(moment.snapshot.ends)
    # As of a run, nothing beyond its ends exists; now, they only tell which partitions are empty.
    ranges = found.with_empty(ends) if moment.as_of is None else found.cut(ends)
    return ArchiveScope(moment=moment, names=names, newest=frozenset(newest), ranges=ranges)

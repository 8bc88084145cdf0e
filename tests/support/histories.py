"""Archives with a history, made without a cluster: runs as a backup leaves them, truncations, leftovers."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from maxbrod.archive.archive import Archive, open_archive, open_for_writing
from maxbrod.archive.snapshot_document import RunFacts, Snapshot, encode, gaps_of
from maxbrod.backup.truncation import cut_back
from maxbrod.batch.headers import walk
from maxbrod.catalog.replaced import after_replacing
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Run, Segment, decode_rows, slice_of
from maxbrod.config import Config
from maxbrod.kafka.state.cluster_state import ClusterState, TopicState, encode_state
from maxbrod.layouts.kafka.format import Compression, SegmentLimits
from maxbrod.layouts.kafka.reader import read_log
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import GapReason, PartitionId
from maxbrod.repair.run import repair_archive
from maxbrod.work.work import Work
from support.native_logs import data_batch, marker
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.repair.report import RepairReport

IDS = {"orders": "IVh0Kk5nQSuv3NqX3lZ3BA", "state": "AAh0Kk5nQSuv3NqX3lZ3BA"}
_NOW = 1_700_000_000_000


def records(first: int, count: int, *, epoch: int = 0, value: bytes = b"value", **more: Any) -> bytes:
    return data_batch(first, count, value=value, leader_epoch=epoch, **more)


def _place(each: PartitionId) -> tuple[str, int]:
    return each.topic_id, each.partition


def in_transaction(first: int, count: int, producer: int) -> bytes:
    return data_batch(first, count, attributes=0x10, producer_id=producer, producer_epoch=0, base_sequence=0)


__all__ = ["History", "in_transaction", "marker", "records", "repaired"]


@dataclass
class History:
    """An archive, and the runs that made it."""

    url: str
    number: int = 0
    held: dict[PartitionId, tuple[int, int]] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    compacted: tuple[str, ...] = ("state",)

    def __post_init__(self) -> None:
        open_for_writing(self.url)

    def open(self) -> Archive:
        return open_archive(self.url)

    def write(
        self,
        logs: dict[tuple[str, int], list[bytes]],
        *,
        packed: bool = False,
        mode: str = "source",
        aborted: tuple[tuple[int, int], ...] = (),
        segment_bytes: int = 256 << 20,
    ) -> dict[PartitionId, tuple[str, list[Any]]]:
        """The objects of a run that was killed before its commit: slices by partition."""
        self.number += 1
        limits = SegmentLimits(bytes_max=segment_bytes)
        writer = ArchiveWriter(
            self.open().storage, run_id=self.run_id, compression=Compression.parse(mode), limits=limits
        )
        parts = {}
        with writer as archive:
            for (topic, partition), batches in logs.items():
                part = archive.partition(
                    topic=topic,
                    topic_id=IDS[topic],
                    partition=partition,
                    packed=packed,
                    every_hole=topic not in self.compacted,
                )
                for batch in batches:
                    part.append(np.frombuffer(batch, np.uint8), walk(batch), aborted)
                part.close()
                parts[PartitionId(topic_id=IDS[topic], partition=partition)] = (topic, part)
        return {each: (topic, list(part.slices)) for each, (topic, part) in parts.items()}

    @property
    def run_id(self) -> str:
        return f"20260101T0000{self.number:02}Z-abcdef"

    def run(
        self,
        logs: dict[tuple[str, int], list[bytes]],
        *,
        log_starts: dict[PartitionId, int] | None = None,
        reason: GapReason = GapReason.RETENTION,
        snapshot: bool = True,
        shares: str | None = None,
        retired: list[Gap] | None = None,
        **how: Any,
    ) -> None:
        """One run: what it read, with gaps of this reason between. `shares`: the run whose snapshot it shares."""
        written = self.write(logs, **how)
        archive = self.open()
        rows: list[Any] = []
        shared: dict[str, Any] = {"run_id": self.run_id, "written_at": _NOW + self.number}
        for partition, (topic, slices) in written.items():
            place: dict[str, Any] = {"topic": topic, "topic_id": partition.topic_id, "partition": partition.partition}
            self.topics[partition.topic_id] = topic
            first, cursor = self.held.get(partition, (slices[0].base_offset, slices[0].base_offset))
            if retired:
                cursor = slices[0].base_offset
            for each in slices:
                if cursor < each.base_offset:
                    gap: dict[str, Any] = {"base_offset": cursor, "end_offset": each.base_offset, "reason": reason}
                    rows.append(Gap(**place, **shared, **gap))
                values = {name: getattr(each, name) for name in SLICE_FIELDS}
                missing = each.end_offset - each.base_offset - each.records
                why = None if not missing else GapReason.COMPACTED if topic in self.compacted else GapReason.UNEXPLAINED
                rows.append(Segment(**place, **shared, **values, reason=why))
                cursor = each.end_offset
            self.held[partition] = (first, max(cursor, self.held.get(partition, (0, 0))[1]))
        statistics = {"command": "backup", "exit_code": 0, "records": 1}
        run = Run(started_at=_NOW, finished_at=_NOW + self.number, snapshot=None, statistics=statistics, **shared)
        if shares is not None:
            changes = [
                [["run_id"], self.run_id],
                *([["ends", *_place(each)], end] for each, (_, end) in self.held.items()),
            ]
            run = replace(run, snapshot=f"snapshots/{shares}.json.zst", snapshot_changes=changes)
        elif snapshot:
            path = f"snapshots/{self.run_id}.json.zst"
            archive.storage.put(path, encode(self._snapshot(archive, rows, run, log_starts or {}, retired or [])))
            run = replace(run, snapshot=path)
        archive.catalog.commit([*rows, *([run] if snapshot else [])], retired=retired or [])

    def _snapshot(
        self, archive: Archive, rows: list[Any], run: Run, log_starts: dict[PartitionId, int], retired: list[Gap]
    ) -> Snapshot:
        topics = tuple(
            TopicState(
                name=name,
                topic_id=topic_id,
                internal=False,
                replicas=((1,),),
                configs={},
                effective={"cleanup.policy": "compact" if name in self.compacted else "delete"},
            )
            for topic_id, name in self.topics.items()
        )
        empty: dict[str, Any] = dict.fromkeys(("brokers", "acls", "quotas", "users", "groups", "gaps"), ())
        return Snapshot(
            run_id=run.run_id,
            taken_at_ms=_NOW,
            cluster=encode_state(ClusterState(cluster_id="one", taken_at_ms=_NOW, topics=topics, **empty)),
            ends={each: end for each, (_, end) in self.held.items()},
            topics=dict(self.topics),
            log_starts=log_starts,
            firsts={each: first for each, (first, _) in self.held.items()},
            gaps=gaps_of(row for row in rows if isinstance(row, Gap)),
            revisions=after_replacing(archive.catalog.revisions(), retired),
            run=RunFacts(
                started_at=run.started_at,
                finished_at=run.finished_at,
                statistics=run.statistics,
                commit=archive.catalog.version + 1,
            ),
        )

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        place = PartitionId(topic_id=IDS[topic], partition=partition)
        cut_back(self.open(), place, offset, run_id=f"{self.run_id}", now_ms=_NOW)
        self.held[place] = (self.held[place][0], offset)

    def holding(self, as_of: str | None = None) -> dict[str, Any]:
        """What a reader sees: rows without who wrote them when, and the log of each."""
        from maxbrod.archive.snapshots import find_moment  # noqa: PLC0415

        archive = self.open()
        moment = find_moment(archive.storage, archive.catalog.runs(), as_of)
        rows = decode_rows(archive.catalog.rows(as_of=moment.ends, revisions=moment.revisions))
        found: dict[str, Any] = {}
        for row in rows:
            assert isinstance(row, Segment | Gap)
            where = f"{row.topic}-{row.topic_id}-{row.partition}"
            if isinstance(row, Gap):
                seen: Any = (row.base_offset, row.end_offset, str(row.reason))
            else:
                log = read_log(archive.storage, slice_of(row)).tobytes()
                seen = (row.base_offset, row.end_offset, log, row.aborted, row.codec, row.records, row.reason)
            found.setdefault(where, []).append(seen)
        return found

    def state(self) -> dict[str, Any]:
        """Everything that a rebuild must bring back."""
        archive = self.open()
        runs = archive.catalog.runs()
        return {
            "now": self.holding(),
            **{run.run_id: self.holding(run.run_id) for run in runs if run.snapshot is not None},
            "runs": [(run.run_id, run.commit, run.statistics) for run in runs if run.snapshot is not None],
            "revisions": archive.catalog.revisions(),
        }


@contextmanager
def sparkless() -> Iterator[None]:
    with without_spark():
        yield


def repaired(url: str, **options: Any) -> RepairReport:
    """A repair without Spark, applied unless told otherwise."""
    config = Config.model_validate({"archive": url, "repair": {"apply": True, **options}})
    with sparkless(), Work(config) as work:
        return repair_archive(work)


ORDERS, STATE = PartitionId(topic_id=IDS["orders"], partition=0), PartitionId(topic_id=IDS["state"], partition=0)


def lose(url: str, *names: str) -> None:
    for name in names:
        place = Path(url) / name
        shutil.rmtree(place) if place.is_dir() else place.unlink()

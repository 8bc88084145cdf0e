"""Archives of compacted topics, what a reader sees of them, and compaction by key without Spark."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from maxbrod.archive.archive import open_archive
from maxbrod.archive.knowledge import NOTHING, encode_carried
from maxbrod.archive.snapshot_document import Snapshot, encode
from maxbrod.archive.snapshots import find_moment
from maxbrod.catalog.rows import Gap, Row, Run, Segment, decode_rows, slice_of
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.compact.by_key import verb as by_key
from maxbrod.compact.by_key.task import (
    FOUND,
    NOTE,
    RECORD,
    ByKeySettings,
    GroupItem,
    GroupOutcome,
    read_groups,
    write_groups,
)
from maxbrod.kafka.state.cluster_state import ClusterState, TopicState, encode_state
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.layouts.reader import read_records
from maxbrod.model import AbortedTransaction, Codec, GapReason, PartitionId
from maxbrod.work.executor import Workers
from maxbrod.work.windows import spread
from support.native_archives import TOPIC, Making, compact, id_of
from support.native_logs import pack
from support.plain_batches import Record
from support.sparkless import stay_without_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

    from maxbrod.compact.report import CompactReport

CUT_MS = 1_700_000_000_000
DAY_MS = 86_400_000
COMPACTED = {"cleanup.policy": "compact"}


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_key, "compact_groups", compact_groups_here)
    stay_without_spark(monkeypatch)
    monkeypatch.setattr(Workers, "session", lambda _: None)


def compact_groups_here(
    _: object, settings: ByKeySettings, items: Sequence[GroupItem], *, tasks: int, **more: Any
) -> list[GroupOutcome]:
    """In place of the Spark job: the tasks are the real ones, what Spark does between them is done by a dictionary."""
    payloads = [pickle.dumps(item) for item in items]
    read = spread([(item.raw_bytes, item.number) for item in items], tasks)
    newest: dict[Any, dict[str, Any]] = {}
    for number in range(len(read)):
        task = pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], ["id"])
        for batch in read_groups(settings, payloads, read, [task]):
            assert batch.schema == FOUND
            for row in batch.to_pylist():
                key = row["place"], row["kind"], row["key"]
                if key not in newest or newest[key]["offset"] < row["offset"]:
                    newest[key] = row
    stay = [row for row in newest.values() if row["kind"] == NOTE or not row["mark"] % 2]
    found: list[GroupOutcome] = []
    for number in range(tasks):
        mine = sorted((row["mark"] // 2, row["offset"], row) for row in stay if row["mark"] // 2 % tasks == number)
        batches = [_row(group, row) for group, _, row in mine]
        for answer in write_groups(settings, payloads, batches):
            found += pickle.loads(answer.column("answer")[0].as_py())
    return found


def _row(group: int, row: dict[str, Any]) -> pa.RecordBatch:
    note = None if row["kind"] == RECORD else row["key"]
    values = {"group": group, "kind": row["kind"], "offset": row["offset"], "note": note}
    return pa.RecordBatch.from_pylist([values])


def topic_state(name: str = TOPIC, **configs: str) -> TopicState:
    configs = {name.replace("_", "."): value for name, value in configs.items()}
    effective = {"cleanup.policy": "delete", "delete.retention.ms": str(DAY_MS), **configs}
    return TopicState(
        name=name, topic_id=id_of(name), internal=False, replicas=((1,),), configs=configs, effective=effective
    )


@dataclass
class Keyed:
    """Backups of compacted topics."""

    making: Making

    def __post_init__(self) -> None:
        self.ends: dict[PartitionId, int] = {}
        self.states = {TOPIC: topic_state(cleanup_policy="compact")}

    @property
    def url(self) -> str:
        return self.making.url

    def backup(
        self,
        batches: dict[int, list[bytes]],
        *,
        aborted: dict[int, Sequence[AbortedTransaction]] | None = None,
        topic: str = TOPIC,
        started_at: int = CUT_MS,
        commit: bool = True,
        snapshot: bool = True,
        **more: Any,
    ) -> list[Row]:
        """One run with its snapshot."""
        rows = self.making.run(batches, topic=topic, commit=False, **more)
        catalog = self.making.archive.catalog
        catalog.refresh()
        found: list[Row] = []
        for row in rows:
            if isinstance(row, Segment):
                whole = row.records == row.end_offset - row.base_offset
                row = replace(row, aborted=_clipped((aborted or {}).get(row.partition, ()), row))  # noqa: PLW2901
                found.append(row if whole else replace(row, reason=row.reason or GapReason.COMPACTED))
            else:
                found.append(row)
            if not isinstance(row, Run):
                place = PartitionId(topic_id=row.topic_id, partition=row.partition)
                self.ends[place] = max(self.ends.get(place, 0), row.end_offset)
        last = found.pop()
        assert isinstance(last, Run)
        path = f"snapshots/{last.run_id}.json.zst"
        if snapshot:
            self.making.archive.storage.put(path, encode(self._snapshot(last.run_id)))
        found.append(
            replace(last, started_at=started_at, finished_at=started_at + 5, snapshot=path if snapshot else None)
        )
        if commit:
            catalog.commit(found)
        return found

    def _snapshot(self, run_id: str) -> Snapshot:
        parts: dict[str, Any] = dict.fromkeys(("brokers", "acls", "quotas", "users", "groups", "gaps"), ())
        cluster = ClusterState(cluster_id="c", taken_at_ms=1, topics=tuple(self.states.values()), **parts)
        return Snapshot(
            run_id=run_id,
            taken_at_ms=CUT_MS,
            cluster=encode_state(cluster),
            topics={id_of(name): name for name in self.states},
            ends=dict(self.ends),
            carried=encode_carried(NOTHING),
            revisions=self.making.archive.catalog.revisions(),
        )


def _clipped(aborted: Iterable[AbortedTransaction], row: Segment) -> tuple[AbortedTransaction, ...]:
    return tuple(
        replace(each, last_offset=min(each.last_offset, row.end_offset - 1))
        for each in aborted
        if each.first_offset < row.end_offset and each.last_offset >= row.base_offset
    )


def batch(base: int, *records: tuple[bytes | None, bytes | None], at: int = CUT_MS, **more: Any) -> bytes:
    """A batch of keys and values."""
    made = [
        Record(offset=base + place, timestamp=at, key=key, value=value) for place, (key, value) in enumerate(records)
    ]
    return pack(made, more.pop("codec", Codec.NONE), **more)


def transaction(base: int, *records: tuple[bytes | None, bytes | None], producer_id: int = 9) -> bytes:
    return batch(base, *records, attributes=0x10, producer_id=producer_id, producer_epoch=0, base_sequence=0)


Seen = tuple[int, bytes | None, bytes | None, int]


def records_of(url: str, as_of: str | None = None, *, partition: int = 0, topic: str = TOPIC) -> list[Seen]:
    """The records that an application sees, now or as of a run; also proves that the archive is sound."""
    archive = open_archive(url)
    moment = find_moment(archive.storage, archive.catalog.runs(), as_of)
    table = archive.catalog.rows(topic=topic, partition=partition, as_of=moment.ends, revisions=moment.revisions)
    assert find_tiling_faults(table).complete
    found: list[Seen] = []
    for row in decode_rows(table):
        if isinstance(row, Segment):
            assert verify_slice(archive.storage, slice_of(row)) == []
            for each in read_records(archive.storage, slice_of(row)):
                columns = (each.column(name).to_pylist() for name in ("offset", "key", "value", "timestamp_ms"))
                found += zip(*columns, strict=True)
    return found


def live_rows(url: str, *, partition: int = 0, topic: str = TOPIC) -> list[tuple[str, int, int]]:
    rows = decode_rows(open_archive(url).catalog.rows(topic=topic, partition=partition))
    return [
        (str(row.reason) if isinstance(row, Gap) else "data", row.base_offset, row.end_offset)
        for row in rows
        if not isinstance(row, Run)
    ]


def newest(records: Sequence[Seen], *, horizon_ms: int = CUT_MS - DAY_MS, tombstones_end: int = 1 << 60) -> list[Seen]:
    """What a compaction must leave: the model."""
    last = {key: offset for offset, key, _, _ in records if key is not None}
    return [
        (offset, key, value, at)
        for offset, key, value, at in records
        if key is None
        or (last[key] == offset and not (value is None and 0 <= at < horizon_ms and offset < tombstones_end))
    ]


def compact_keys(url: str, **options: Any) -> CompactReport:
    return compact(url, by_key=True, **options)

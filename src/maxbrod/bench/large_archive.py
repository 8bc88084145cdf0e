"""A large archive on disk: the catalog and the snapshots of many backups, of many partitions, without records.

Either each segment has an object of its own, and all are missing: the worst case of a check, which finds as many
problems as there are rows. Or the segments of a run share a pack, which is there: a file with nothing but a length.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.archive.carried import NOTHING, encode_carried
from maxbrod.archive.snapshot_document import RunFacts, Snapshot, encode
from maxbrod.bench.planning import SEGMENT_BYTES, SEGMENT_OFFSETS, TOPIC_PARTITIONS, name_of, rows_of
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Run, encode_rows
from maxbrod.kafka.state.cluster_state import Broker, ClusterState, CommittedOffset, Group, TopicState, encode_state
from maxbrod.model import PartitionId
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

_PACK_BYTES: Final = 100
"""A slice in a pack. File systems do not take files of a million segments of 10 MB."""
_DAY_MS: Final = 86_400_000
_FIRST_MS: Final = 1_767_225_600_000  # 2026-01-01
_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}


def write_archive(folder: str, *, partitions: int, segments: int, packed: bool = False) -> None:
    """What daily backups would have left: each added a segment to every partition, and a snapshot."""
    storage = open_storage(folder)
    catalog = Catalog.create(storage)
    cluster = encode_state(_cluster(partitions))
    for number in range(-(-segments // partitions)):
        rows = rows_of(number, partitions)
        if packed:
            path = f"packs/20260101T0000{number:02d}Z-bench.log"
            rows = _in_pack(rows, path)
            pack = Path(folder) / path
            pack.parent.mkdir(exist_ok=True)
            with pack.open("wb") as file:
                file.truncate(partitions * _PACK_BYTES)
        run = _record_run(storage, number, partitions, cluster)
        catalog.commit(pa.concat_tables([rows, encode_rows([run])]))


def _in_pack(rows: pa.Table, path: str) -> pa.Table:
    count = rows.num_rows
    values: dict[str, pa.Array] = {
        "path": pa.array([path] * count, pa.string()),
        "position": pa.array(np.arange(count) * _PACK_BYTES, pa.int64()),
        "bytes": pa.array(np.full(count, _PACK_BYTES), pa.int64()),
        "raw_bytes": pa.array(np.full(count, _PACK_BYTES), pa.int64()),
    }
    for name, column in values.items():
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
    return rows


def _record_run(storage: Storage, number: int, partitions: int, cluster: dict[str, Any]) -> Run:
    """The run, whose snapshot is stored."""
    run_id, at = f"20260101T0000{number:02d}Z-bench", _FIRST_MS + number * _DAY_MS
    path, commit = f"snapshots/{run_id}.json.zst", number + 1
    statistics: dict[str, Any] = {
        "command": "backup",
        "exit_code": 0,
        "topics": -(-partitions // TOPIC_PARTITIONS),
        "records": partitions * SEGMENT_OFFSETS,
        "bytes": partitions * SEGMENT_BYTES,
    }
    facts = RunFacts(started_at=at, finished_at=at, statistics=statistics, commit=commit)
    ids = [PartitionId(topic_id=name, partition=partition) for name, partition in map(name_of, range(partitions))]
    snapshot = Snapshot(
        run_id=run_id,
        taken_at_ms=at,
        cluster={**cluster, "taken_at_ms": at},
        ends=dict.fromkeys(ids, (number + 1) * SEGMENT_OFFSETS),
        topics={each.topic_id: each.topic_id for each in ids},
        recovery_points=dict.fromkeys(ids, at),
        carried=encode_carried(NOTHING),
        log_starts=dict.fromkeys(ids, 0),
        firsts=dict.fromkeys(ids, 0),
        leader_epochs=dict.fromkeys(ids, 0),
        run=facts,
    )
    storage.put(path, encode(snapshot))
    return Run(
        run_id=run_id,
        started_at=at,
        finished_at=at,
        snapshot=path,
        statistics=statistics,
        written_at=at,
        commit=commit,
    )


def _cluster(partitions: int) -> ClusterState:
    topics = sorted({name for name, _ in map(name_of, range(partitions))})
    return ClusterState(
        cluster_id="bench",
        taken_at_ms=0,
        brokers=(Broker(node_id=1, host="broker", port=9092),),
        topics=tuple(
            TopicState(
                name=name,
                topic_id=name,
                internal=False,
                replicas=((1,),) * TOPIC_PARTITIONS,
                configs={},
                effective=_CONFIGS,
            )
            for name in topics
        ),
        acls=(),
        quotas=(),
        users=(),
        groups=tuple(_group(name) for name in topics),
        gaps=(),
    )


def _group(topic: str) -> Group:
    """A group that has read some of a topic."""
    offsets = tuple(
        CommittedOffset(topic=topic, topic_id=topic, partition=each, offset=1000, leader_epoch=0, metadata="")
        for each in range(TOPIC_PARTITIONS)
    )
    return Group(group_id=f"group-of-{topic}", type="classic", state="Empty", protocol_type="consumer", offsets=offsets)

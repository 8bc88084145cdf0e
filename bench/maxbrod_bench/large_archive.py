"""A large archive on disk: the catalog and the snapshots of many backups, of many partitions, without records.

Either each segment has an object of its own, and all are missing: the worst case of a check, which finds as many
problems as there are rows. Or the segments of a run share a pack, which is there: a file with nothing but a length.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.archive.archive import open_archive
from maxbrod.archive.knowledge import NOTHING, encode_carried
from maxbrod.archive.snapshot_document import RunFacts, Snapshot, encode
from maxbrod.backup.archive_state import read_archive_state
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Run, encode_rows
from maxbrod.cli.main import run
from maxbrod.compare.archived import measure_topics
from maxbrod.kafka.state.cluster_state import Broker, ClusterState, CommittedOffset, Group, TopicState, encode_state
from maxbrod.model import PartitionId
from maxbrod.restore.archived import look_at_archive
from maxbrod.restore.loss import listed_losses
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.plan.sources import measure_sources
from maxbrod.storage.stores import open_storage
from maxbrod_bench.planning import (
    PARTITIONS,
    SEGMENT_BYTES,
    SEGMENT_OFFSETS,
    TOPIC_PARTITIONS,
    name_of,
    rows_of,
    with_columns,
)
from maxbrod_bench.race import Figure, at_most, measure_fresh, peak_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.storage.interface import Storage


ROWS: Final = 5_000_000
BYTES_WANTED: Final = 1.5e9
_TOPIC: Final = "topic-00042"
_MERGE_ALL: Final = ("--min-segment-count", "2", "--min-segment-size", "1", "--max-segment-size", "1TB")


def measure(*, rows: int = ROWS, on_stage: Callable[[str], None] = lambda _: None) -> list[Figure]:
    """The peak of each command, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        on_stage(f"writing {rows:,} rows")
        write_archive(folder, partitions=min(PARTITIONS, rows), segments=rows)
        return [_measure(name, folder, on_stage) for name in LOOKS]


def _measure(name: str, url: str, on_stage: Callable[[str], None]) -> Figure:
    on_stage(name)
    found = measure_fresh(__name__, "report", name, url)
    note = f"{found['seconds']:.1f} s, {found['cpu_seconds']:.1f} s of processor time"
    return at_most(name, found["peak_bytes"], "bytes", BYTES_WANTED, note=note)


def report(name: str, url: str) -> dict[str, float]:
    """Run one of the commands, and return what that took. What the command itself prints is discarded."""
    began = time.perf_counter()
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        LOOKS[name](url)
    taken = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time()}
    return {**taken, "peak_bytes": peak_bytes()}


def _plan(url: str, *topics: str) -> object:
    """What a dry run does with the archive. Lost objects are not added to the sources of everything: all are lost."""
    archive, request = open_archive(url), RestoreRequest(topics=topics)
    found = look_at_archive(archive, request)
    lost = listed_losses(archive, found.chosen.topics.keys(), found.revisions) if topics else {}
    return measure_sources(found.rows.portions(), request, found.chosen, found.ends, as_of=False, lost=lost)


LOOKS: Final[dict[str, Callable[[str], object]]] = {
    "ls": lambda url: run(["ls", "-a", url]),
    "ls --runs": lambda url: run(["ls", "-a", url, "--runs"]),
    "show of one topic": lambda url: run(["show", "-a", url, _TOPIC]),
    "status": lambda url: run(["status", "-a", url]),
    "query, a count": lambda url: run(["query", "-a", url, "SELECT count(*) FROM records"]),
    "hold list": lambda url: run(["hold", "list", "-a", url]),
    "compact --dry-run, everything is merged": lambda url: run(["compact", "-a", url, "--dry-run", *_MERGE_ALL]),
    "prune by runs, dry": lambda url: run(["prune", "-a", url, "--keep-last", "5"]),
    "prune by age, dry": lambda url: run(["prune", "-a", url, "--older-than", "1d"]),
    "prune by size of the archive, dry": lambda url: run(["prune", "-a", url, "--archive-bytes", "10TB"]),
    "prune by size of topics and as the source, dry": lambda url: run(
        ["prune", "-a", url, "--topic-bytes", "10GB", "--as-source"]
    ),
    "repair, dry": lambda url: run(["repair", "-a", url]),
    "check": lambda url: run(["check", "-a", url]),
    "check of one topic": lambda url: run(["check", "-a", url, _TOPIC]),
    "check --json": lambda url: run(["check", "-a", url, "--json"]),
    "gc, dry": lambda url: run(["gc", "-a", url]),
    "planning a restore of one topic": lambda url: _plan(url, _TOPIC),
    "planning a restore of everything": _plan,
    "planning a comparison or drill": lambda url: list(measure_topics(open_archive(url), RestoreRequest())),
    "reading what a backup needs": lambda url: read_archive_state(open_archive(url)),
}


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
    sizes = np.full(rows.num_rows, _PACK_BYTES)
    places = np.arange(rows.num_rows) * _PACK_BYTES
    return with_columns(rows, {"path": [path] * rows.num_rows, "position": places, "bytes": sizes, "raw_bytes": sizes})


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

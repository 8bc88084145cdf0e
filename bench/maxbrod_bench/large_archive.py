"""A large archive on disk: the catalog and the snapshots of many backups, of many partitions, without records.

Each segment has an object of its own, and all are missing: the worst case of a check, which finds as many problems as
there are rows.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from maxbrod.archive.archive import open_archive
from maxbrod.archive.knowledge import NOTHING, encode_carried
from maxbrod.archive.snapshot_document import RunFacts, Snapshot
from maxbrod.backup.archive_state import read_archive_state
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Run, encode_rows
from maxbrod.cli.main import run
from maxbrod.compare.archived import measure_topics
from maxbrod.kafka.state.cluster_state import Broker, ClusterState, CommittedOffset, Group, TopicState, encode_state
from maxbrod.model import PartitionId
from maxbrod.restore.archived import listed_losses, look_at_archive
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.plan.sources import measure_sources
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage
from maxbrod_bench.planning import (
    PARTITIONS,
    SEGMENT_BYTES,
    SEGMENT_OFFSETS,
    TOPIC_PARTITIONS,
    name_of,
    rows_of,
    store_run,
)
from maxbrod_bench.race import Figure, at_most, measure_fresh, peak_bytes

ROWS: Final = 5_000_000
BYTES_WANTED: Final = 1.5e9
_TOPIC: Final = "topic-00042"
_MERGE_ALL: Final = ("--min-segment-count", "2", "--min-segment-size", "1", "--max-segment-size", "1TB")


def measure(*, rows: int = ROWS, on_stage: Callable[[str], None] = lambda _: None) -> list[Figure]:
    """The peak of each command, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        on_stage(f"writing {rows:,} rows")
        write_archive(folder, partitions=min(PARTITIONS, rows), segments=rows)
        figures = []
        for name in LOOKS:
            on_stage(name)
            found = measure_fresh(__name__, "report", name, folder)
            note = f"{found['seconds']:.1f} s, {found['cpu_seconds']:.1f} s of processor time"
            figures.append(at_most(name, found["peak_bytes"], "bytes", BYTES_WANTED, note=note))
        return figures


def report(name: str, url: str) -> dict[str, float]:
    """Run one of the commands, and return what that took. What the command itself prints is discarded."""
    began = time.perf_counter()
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        LOOKS[name](url)
    taken = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time()}
    return {**taken, "peak_bytes": peak_bytes()}


def _plan(url: str, *topics: str) -> object:
    """Plan as a dry run does. Lost objects are not added to the sources of everything: all are lost."""
    archive, request = open_archive(url), RestoreRequest(topics=topics)
    found = look_at_archive(archive, request)
    lost = listed_losses(archive, found.chosen.topics.keys(), found.revisions) if topics else {}
    return measure_sources(found.rows.portions(), request, found.chosen, found.ends, as_of=False, lost=lost)


_COMMANDS: Final = {
    "ls": ["ls"],
    "ls --runs": ["ls", "--runs"],
    "show of one topic": ["show", _TOPIC],
    "status": ["status"],
    "query, a count": ["query", "SELECT count(*) FROM records"],
    "hold list": ["hold", "list"],
    "compact --dry-run, everything is merged": ["compact", "--dry-run", *_MERGE_ALL],
    "prune by runs, dry": ["prune", "--keep-last", "5"],
    "prune by age, dry": ["prune", "--older-than", "1d"],
    "prune by size of the archive, dry": ["prune", "--archive-bytes", "10TB"],
    "prune by size of topics and as the source, dry": ["prune", "--topic-bytes", "10GB", "--as-source"],
    "repair, dry": ["repair"],
    "check": ["check"],
    "check of one topic": ["check", _TOPIC],
    "check --json": ["check", "--json"],
    "gc, dry": ["gc"],
}
LOOKS: Final[dict[str, Callable[[str], object]]] = {
    **{name: lambda url, words=words: run([*words, "-a", url]) for name, words in _COMMANDS.items()},  # type: ignore[misc]
    "planning a restore of one topic": lambda url: _plan(url, _TOPIC),
    "planning a restore of everything": _plan,
    "planning a comparison or drill": lambda url: list(measure_topics(open_archive(url), RestoreRequest())),
    "reading what a backup needs": lambda url: read_archive_state(open_archive(url)),
}


_DAY_MS: Final = 86_400_000
_FIRST_MS: Final = 1_767_225_600_000  # 2026-01-01
_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}


def write_archive(folder: str, *, partitions: int, segments: int) -> None:
    """Write what daily backups would have left: each added a segment to every partition, and a snapshot."""
    storage = open_storage(folder)
    catalog = Catalog.create(storage)
    cluster = encode_state(_cluster(partitions))
    for number in range(-(-segments // partitions)):
        run = _record_run(storage, number, partitions, cluster)
        catalog.commit(pa.concat_tables([rows_of(number, partitions), encode_rows([run])]))


def _record_run(storage: Storage, number: int, partitions: int, cluster: dict[str, Any]) -> Run:
    """The run, whose snapshot is stored."""
    run_id, at = f"20260101T0000{number:02d}Z-bench", _FIRST_MS + number * _DAY_MS
    statistics: dict[str, Any] = {
        "command": "backup",
        "exit_code": 0,
        "topics": -(-partitions // TOPIC_PARTITIONS),
        "records": partitions * SEGMENT_OFFSETS,
        "bytes": partitions * SEGMENT_BYTES,
    }
    facts = RunFacts(started_at=at, finished_at=at, statistics=statistics, commit=number + 1)
    ids = [PartitionId(topic_id=name, partition=partition) for name, partition in map(name_of, range(partitions))]
    snapshot = Snapshot(
        run_id=run_id,
        taken_at_ms=at,
        cluster={**cluster, "taken_at_ms": at},
        ends=dict.fromkeys(ids, (number + 1) * SEGMENT_OFFSETS),
        topics={place.topic_id: place.topic_id for place in ids},
        recovery_points=dict.fromkeys(ids, at),
        carried=encode_carried(NOTHING),
        log_starts=dict.fromkeys(ids, 0),
        firsts=dict.fromkeys(ids, 0),
        leader_epochs=dict.fromkeys(ids, 0),
        run=facts,
    )
    return store_run(storage, snapshot, statistics)


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
        CommittedOffset(topic=topic, topic_id=topic, partition=partition, offset=1000, leader_epoch=0, metadata="")
        for partition in range(TOPIC_PARTITIONS)
    )
    return Group(group_id=f"group-of-{topic}", type="classic", state="Empty", protocol_type="consumer", offsets=offsets)

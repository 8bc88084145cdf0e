"""`maxbrod bench lifecycle --only by-key`: the newest record of each key of data B, as a Spark job."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from maxbrod.archive.archive import open_native
from maxbrod.archive.carried import NOTHING, encode_carried
from maxbrod.archive.snapshot_document import Snapshot, encode
from maxbrod.batch.encode import encode as encode_batches
from maxbrod.bench.figures import Figure
from maxbrod.bench.lifecycle import BATCH_BYTES, PARTITIONS, SEGMENT_RECORDS, TOPIC, TOPIC_ID, write_runs
from maxbrod.bench.race import Lap, race_laps, time_lap
from maxbrod.catalog.rows import Run
from maxbrod.compact.options import CompactOptions
from maxbrod.compact.run import compact_archive
from maxbrod.config import Config
from maxbrod.errors import MaxbrodError
from maxbrod.kafka.state.cluster_state import ClusterState, TopicState, encode_state
from maxbrod.model import Codec
from maxbrod.sandbox.events import orders
from maxbrod.work.session import Session, open_session

SEGMENTS: Final = 50
"""For each partition, at scale 1: 4 million records in all."""
RECORDS_WANTED: Final = 500_000
_CONFIGS: Final = {"cleanup.policy": "compact", "delete.retention.ms": "86400000"}


def measure(*, scale: float, rounds: int) -> list[Figure]:
    with open_session(jvm_works=True) as session, tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as disk:
        return measure_by_key(session, Path(disk), segments=max(2, round(SEGMENTS * scale)), rounds=rounds)


def measure_by_key(session: Session, disk: Path, *, segments: int, rounds: int) -> list[Figure]:
    """Records read per second."""
    source = disk / "keyed"
    logs = (
        encode_batches(orders(SEGMENT_RECORDS, seed=seed), codec=Codec.LZ4, batch_bytes_max=BATCH_BYTES)
        for seed in range(segments)
    )
    write_runs(str(source), (dict.fromkeys(range(PARTITIONS), log) for log in logs), packed=False)
    _record_snapshot(str(source))
    records = PARTITIONS * segments * SEGMENT_RECORDS
    removed: list[int] = []
    lap = partial(_compact_copy, session, source, disk / "compacted", removed)
    laps = race_laps({"maxbrod": lap}, rounds=rounds)["maxbrod"]
    shutil.rmtree(source)
    rate, cpu = records / laps.best, records / laps.best_cpu
    note = f"{records:,} records, of which {removed[-1]:,} go; {cpu:,.0f} for each second of processor time"
    return [
        Figure(name="compaction of B by key, records", value=rate, unit="per second", wanted=RECORDS_WANTED, note=note)
    ]


def _compact_copy(session: Session, source: Path, target: Path, removed: list[int]) -> Lap:
    """Compact a copy of the archive that shares its files: the copy is not timed."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=os.link)
    lap = time_lap(partial(_compact, session, str(target), removed))
    shutil.rmtree(target)
    return lap


def _compact(session: Session, url: str, removed: list[int]) -> None:
    report = compact_archive(Config(archive=url, compact=CompactOptions(by_key=True)), session=session)
    if report.exit_code or not report.total("removed"):
        raise MaxbrodError("the archive was not compacted", operation="bench", object_name=url)
    removed.append(report.total("removed"))


def _record_snapshot(url: str) -> None:
    """A run that knows the topic as a compacted one."""
    archive = open_native(url)
    parts: dict[str, Any] = dict.fromkeys(("brokers", "acls", "quotas", "users", "groups", "gaps"), ())
    topic = TopicState(
        name=TOPIC,
        topic_id=TOPIC_ID,
        internal=False,
        replicas=((1,),) * PARTITIONS,
        configs=_CONFIGS,
        effective=_CONFIGS,
    )
    cluster = ClusterState(cluster_id="bench", taken_at_ms=0, topics=(topic,), **parts)
    ends = {where: held.end_offset for where, held in archive.catalog.positions().items()}
    snapshot = Snapshot(
        run_id="run-last",
        taken_at_ms=0,
        cluster=encode_state(cluster),
        topics={TOPIC_ID: TOPIC},
        ends=ends,
        carried=encode_carried(NOTHING),
        revisions={},
    )
    path = "snapshots/run-last.json.zst"
    archive.storage.put(path, encode(snapshot))
    run = Run(run_id="run-last", started_at=0, finished_at=0, snapshot=path, statistics={}, written_at=0)
    archive.catalog.commit([run])

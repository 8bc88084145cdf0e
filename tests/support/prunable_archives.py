"""Archives to prune: small ones with every kind of row, and an oracle of what they hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.knowledge import NOTHING, encode_carried
from maxbrod.catalog.rows import Gap, Run, Segment, decode_rows
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.kafka.state.cluster_state import ClusterState, TopicState
from maxbrod.model import GapReason, PartitionId, now_ms
from maxbrod.prune.plan import SegmentPolicy
from maxbrod.prune.run import PruneRequest, prune_archive
from maxbrod.prune.runs import RunPolicy
from support.archives import Place, commit_run, put_snapshot
from support.catalog_rows import gap, run, segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maxbrod.archive.archive import Archive
    from maxbrod.prune.report import PruneReport

DAY_MS: Final = 24 * 3600 * 1000
IDS: Final = {name: (name.upper() * 22)[:22] for name in ("orders", "users", "gone")}


def topic_state(name: str, **configs: str) -> TopicState:
    effective = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", **configs}
    return TopicState(
        name=name, topic_id=IDS[name], internal=False, replicas=((1,),), configs=configs, effective=effective
    )


def cluster(*topics: TopicState) -> ClusterState:
    return ClusterState(
        cluster_id="c", taken_at_ms=1, brokers=(), topics=topics, acls=(), quotas=(), users=(), groups=(), gaps=()
    )


def part(name: str, partition: int = 0) -> PartitionId:
    return PartitionId(topic_id=IDS[name], partition=partition)


def data(name: str, base: int, end: int, *, age_days: float, partition: int = 0, **changes: Any) -> Segment:
    at = now_ms() - round(age_days * DAY_MS)
    path = f"segments/{name}/{IDS[name]}/{partition}/{base:020}-ab.log"
    values: dict[str, Any] = {
        "topic": name,
        "topic_id": IDS[name],
        "partition": partition,
        "path": path,
        "min_timestamp": at - 1000,
        "max_timestamp": at,
        "min_timestamp_exact": True,
        "written_at": at,
        **changes,
    }
    return segment(base, end, **values)


def hole(name: str, base: int, end: int, reason: GapReason, **changes: Any) -> Gap:
    return gap(base, end, topic=name, topic_id=IDS[name], reason=reason, **changes)


def commit(
    archive: Archive,
    run_id: str,
    rows: Iterable[Segment | Gap],
    ends: Mapping[PartitionId, int],
    *,
    topics: tuple[TopicState, ...] = (),
    age_days: float = 0.0,
    statistics: Mapping[str, Any] | None = None,
    carried: Mapping[str, Any] | None = None,
) -> None:
    """A backup of that age."""
    at = now_ms() - round(age_days * DAY_MS)
    commit_run(
        archive,
        run_id,
        [replace(row, run_id=run_id) for row in rows],
        topics=names(ends),
        ends=ends,
        cluster=cluster(*(topics or (topic_state("orders"), topic_state("users")))),
        carried=carried or encode_carried(NOTHING),
        started_at=at,
        finished_at=at,
        written_at=at,
        statistics={"command": "backup", "exit_code": 0, **(statistics or {})},
    )


def years(place: Place) -> Archive:
    """`orders`: 10 offsets a day for 10 days in partition 0, with a compacted gap; partition 1 in packs; `users`: one.

    One run a day, the oldest 9 days ago, all in one commit: commits take time.
    """
    archive = place.create()
    rows: list[Segment | Gap | Run] = []
    ends: dict[PartitionId, int] = {}
    for day in range(10):
        age, base, run_id = 9.5 - day, day * 10, f"run-{day}"
        if day == 4:
            rows.append(data("orders", base, base + 6, age_days=age, run_id=run_id))
            rows.append(hole("orders", base + 6, base + 10, GapReason.COMPACTED, run_id=run_id))
        else:
            rows.append(data("orders", base, base + 10, age_days=age, run_id=run_id))
        pack: dict[str, Any] = {"path": f"packs/run-{day // 2}-aa.log", "position": day % 2 * 500}
        rows.append(data("orders", day * 5, day * 5 + 5, partition=1, age_days=age, run_id=run_id, **pack))
        ends |= {part("orders"): base + 10, part("orders", 1): day * 5 + 5}
        if day == 3:
            rows.append(data("users", 0, 4, age_days=age, run_id=run_id))
            ends |= {part("users"): 4}
        rows.append(put_point(archive, run_id, ends, age_days=age))
    sizes: dict[str, int] = {}
    for row in rows:
        if isinstance(row, Segment):
            sizes[row.path] = max(sizes.get(row.path, 0), row.position + row.bytes)
    for path, size in sizes.items():
        archive.storage.put(path, bytes(size))
    archive.catalog.commit(rows)
    return archive


def put_point(archive: Archive, run_id: str, ends: Mapping[PartitionId, int], *, age_days: float) -> Run:
    """The snapshot of a backup of that age, and its run."""
    at = now_ms() - round(age_days * DAY_MS)
    put_snapshot(
        archive.storage,
        run_id,
        topics=names(ends),
        ends=ends,
        cluster=cluster(topic_state("orders"), topic_state("users")),
        carried=encode_carried(NOTHING),
    )
    return run(run_id, started_at=at, finished_at=at, written_at=at, statistics={"command": "backup", "exit_code": 0})


def names(ends: Mapping[PartitionId, int]) -> dict[str, str]:
    return {each.topic_id: name for name, topic_id in IDS.items() for each in ends if each.topic_id == topic_id}


def everything(archive: Archive) -> list[Any]:
    """All rows but runs of prune and hold, in a fixed order: what an undo must bring back."""
    catalog = archive.catalog
    rows = [*decode_rows(catalog.rows()), *decode_rows(catalog.replaced()), *points(archive)]
    return sorted(map(repr, rows))


def points(archive: Archive) -> list[Run]:
    return [run for run in archive.catalog.runs() if run.snapshot is not None]


def segments(archive: Archive, name: str, partition: int = 0) -> list[tuple[int, int]]:
    rows = decode_rows(archive.catalog.rows(topic=name, partition=partition))
    return [(row.base_offset, row.end_offset) for row in rows if isinstance(row, Segment)]


def gaps(archive: Archive, name: str, partition: int = 0) -> list[tuple[int, int, str]]:
    rows = decode_rows(archive.catalog.rows(topic=name, partition=partition))
    return [(row.base_offset, row.end_offset, str(row.reason)) for row in rows if isinstance(row, Gap)]


def assert_tiles(archive: Archive) -> None:
    assert find_tiling_faults(archive.catalog.rows()).complete


def prune(
    archive: Archive, *topics: str, apply: bool = True, runs: RunPolicy | None = None, **limits: Any
) -> PruneReport:
    if "older_days" in limits:
        limits["before_ms"] = now_ms() - round(limits.pop("older_days") * DAY_MS)
    request = PruneRequest(segments=SegmentPolicy(**limits), runs=runs or RunPolicy(), topics=topics)
    return prune_archive(archive, request, apply=apply)

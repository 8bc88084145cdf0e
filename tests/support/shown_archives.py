"""An archive with everything that the dashboard shows, made without Kafka: weeks of runs, gaps, groups and proofs."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.archive.archive import Archive, Proof, ProofKind, open_for_writing, record_proof
from maxbrod.archive.holds import add_hold
from maxbrod.archive.knowledge import NOTHING, encode_carried
from maxbrod.archive.numbered import NumberedDocuments
from maxbrod.archive.snapshot_document import Snapshot, encode
from maxbrod.batch.headers import walk
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Row, Run, Segment
from maxbrod.kafka.state.cluster_state import Broker, ClusterState, CommittedOffset, Group, TopicState, encode_state
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import GapReason, PartitionId, now_ms
from maxbrod.replicate.heartbeat import Heartbeat, write_heartbeat
from maxbrod.schedule.state import JobOutcome, JobState, ScheduleState
from maxbrod.storage.composed import SCHEDULE_FOLDER
from support.native_logs import pack
from support.plain_batches import Record

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS: Final = 86_400_000
HOSTILE: Final = "<img src=x onerror=document.title=666>"
"""A name that no broker accepts, but any writer of an archive can invent."""
HOSTILE_VALUE: Final = b'"><script>document.title=666</script><b onmouseover=document.title=666>\xe2\x80\xae\x07'
AVRO: Final = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "fields": [{"name": "payer", "type": "string"}, {"name": "cents", "type": "long"}],
    }
)
Logs = dict[tuple[str, int], list[Record]]
"""Records by topic and partition."""
NamedGap = tuple[str, int, int, int, GapReason]
ORDERS, OLD_ORDERS = "orders", "old-orders"


def id_of(name: str) -> str:
    letters = "".join(letter for letter in name if letter.isalnum())
    return f"{letters:x<22}"[:22]


@dataclass
class ShownArchive:
    """Grows backup by backup, at times of our choice."""

    url: str
    ends: dict[PartitionId, int] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        self.archive: Archive = open_for_writing(self.url)

    def backup(
        self,
        at_ms: int,
        logs: Logs,
        *,
        gaps: tuple[NamedGap, ...] = (),
        ids: dict[str, str] | None = None,
        **statistics: Any,
    ) -> str:
        """One run. `ids`: under which id a topic is archived, if not under its usual one."""
        run_id = f"{np.datetime64(at_ms, 'ms').item():%Y%m%dT%H%M%SZ}-{len(self.names):02x}{at_ms % 256:02x}"
        rows: list[Row] = []
        known = {
            name: (ids or {}).get(name, id_of(name)) for name in {*(name for name, _ in logs), *(g[0] for g in gaps)}
        }
        with ArchiveWriter(self.archive.storage, run_id=run_id) as writer:
            parts = {}
            for (name, partition), records in logs.items():
                part = writer.partition(topic=name, topic_id=known[name], partition=partition, packed=True)
                data = np.frombuffer(pack(records), np.uint8)
                part.append(data, walk(data, check_crc=True))
                parts[name, partition] = part
        for name, partition, first, end, reason in gaps:
            place: dict[str, Any] = {"topic": name, "topic_id": known[name], "partition": partition}
            rows.append(Gap(**place, base_offset=first, end_offset=end, reason=reason, run_id=run_id, written_at=at_ms))
        for (name, partition), part in parts.items():
            for piece in part.slices:
                values = {field: getattr(piece, field) for field in SLICE_FIELDS}
                place = {"topic": name, "topic_id": known[name], "partition": partition}
                exact = {"min_timestamp_exact": True, "run_id": run_id, "written_at": at_ms}
                rows.append(Segment(**{**values, **place, **exact}))
        for row in rows:
            if isinstance(row, (Segment, Gap)):
                where = PartitionId(topic_id=row.topic_id, partition=row.partition)
                self.ends[where] = max(self.ends.get(where, 0), row.end_offset)
                self.names[row.topic_id] = row.topic
        path = f"snapshots/{run_id}.json.zst"
        self.archive.storage.put(path, encode(self._snapshot(run_id, at_ms)))
        found = {
            "command": "backup",
            "exit_code": 0,
            "topics": len(known),
            "records": sum(map(len, logs.values())),
            "bytes": sum(row.bytes for row in rows if isinstance(row, Segment)),
            **statistics,
        }
        run = Run(
            run_id=run_id,
            started_at=at_ms - 4000,
            finished_at=at_ms,
            snapshot=path,
            statistics=found,
            written_at=at_ms,
        )
        self.archive.catalog.commit([*rows, run])
        return run_id

    def _snapshot(self, run_id: str, at_ms: int) -> Snapshot:
        topics = tuple(
            TopicState(
                name=name,
                topic_id=topic_id,
                internal=False,
                replicas=((1, 2, 3),) * (1 + max(p.partition for p in self.ends if p.topic_id == topic_id)),
                configs=self.configs.get(name, {}),
                effective={"cleanup.policy": "delete", "retention.ms": "604800000", **self.configs.get(name, {})},
            )
            for topic_id, name in self.names.items()
            if topic_id != id_of(OLD_ORDERS)
        )
        parts: dict[str, Any] = dict.fromkeys(("acls", "quotas", "users", "gaps"), ())
        brokers = tuple(Broker(node_id=number, host=f"broker{number}", port=9092) for number in (1, 2, 3))
        state = ClusterState(
            cluster_id="shop", taken_at_ms=at_ms, topics=topics, brokers=brokers, groups=self.groups, **parts
        )
        return Snapshot(
            run_id=run_id,
            taken_at_ms=at_ms,
            cluster=encode_state(state),
            topics=dict(self.names),
            ends=dict(self.ends),
            recovery_points=dict.fromkeys(self.ends, at_ms - 4000),
            carried=encode_carried(NOTHING),
            log_starts=dict.fromkeys(self.ends, 0),
        )


def make_shown(folder: Path, *, days: int = 12) -> ShownArchive:
    """The archive of a shop: one backup a day, the last an hour ago."""
    made = ShownArchive(str(folder))
    now = now_ms()
    made.configs = {ORDERS: {"retention.ms": "604800000"}}
    old = [order(number, now - (days + 2) * DAY_MS) for number in range(5)]
    made.backup(now - (days + 2) * DAY_MS, {(ORDERS, 0): old}, ids={ORDERS: id_of(OLD_ORDERS)})
    for day in range(days):
        at = now - (days - 1 - day) * DAY_MS - 3_600_000
        if day == days // 2:
            made.configs[ORDERS] = {"retention.ms": "1209600000", "max.message.bytes": "2097152"}
        if day == days - 1:
            made.groups = _groups(made)
        logs, gaps = _day(made, day, at)
        made.backup(at, logs, gaps=gaps, **_ending(day, days))
    _prove(made, now)
    until_ms = now - (days - 3) * DAY_MS
    add_hold(made.archive, who="audit", why="a lawsuit <b>is</b> pending", topics=[ORDERS], until_ms=until_ms)
    beat = Heartbeat(
        at_ms=now - 5000, instance="egress-1", cluster_id="shop", ends={p: e + 7 for p, e in made.ends.items()}
    )
    write_heartbeat(made.archive.storage, beat)
    documents = NumberedDocuments(made.archive.storage, SCHEDULE_FOLDER)
    documents.put(1, json.dumps(asdict(schedule(now))).encode())
    return made


def _day(made: ShownArchive, day: int, at: int) -> tuple[Logs, tuple[NamedGap, ...]]:
    logs: Logs = {}
    gaps: list[NamedGap] = []
    for partition in range(3):
        first = made.ends.get(PartitionId(topic_id=id_of(ORDERS), partition=partition), 0)
        if day == 0:
            gaps.append((ORDERS, partition, 0, 40, GapReason.RETENTION))
            first = 40
        if (day, partition) == (5, 1):
            gaps.append((ORDERS, partition, first, first + 60, GapReason.COMPACTED))
            first += 60
        if (day, partition) == (7, 2):
            gaps.append((ORDERS, partition, first, first + 3, GapReason.UNEXPLAINED))
            first += 3
        if (day, partition) == (4, 0):
            continue
        count = 20 + 7 * ((day * 3 + partition) % 5)
        spread = DAY_MS // count
        logs[ORDERS, partition] = [order(first + place, at - DAY_MS + place * spread) for place in range(count)]
    if day == 2:
        logs[HOSTILE, 0] = _hostile(at)
        logs["payments", 0], logs["_schemas", 0] = _payments(at)
    if day == 3:
        logs["clicks", 0] = [Record(offset=n, timestamp=at + n, key=None, value=b"") for n in range(400)]
    return logs, tuple(gaps)


def order(offset: int, at: int) -> Record:
    value = {"order": offset, "customer": f"c-{offset % 17}", "cents": 100 + offset * 37 % 9000, "paid": offset % 3 > 0}
    return Record(
        offset=offset,
        timestamp=at,
        key=f"c-{offset % 17}".encode(),
        value=None if offset % 50 == 49 else json.dumps(value).encode(),
        headers=[(b"trace-id", f"{offset:016x}".encode()), (b"flag", None)] if offset % 2 else [],
    )


def _hostile(at: int) -> list[Record]:
    values = (HOSTILE_VALUE, b"\x00\x01\xfe\xff" * 40, json.dumps({"</script>": ["<i>", "\u202e"]}).encode())
    return [
        Record(offset=n, timestamp=at, key=HOSTILE_VALUE, value=value, headers=[(HOSTILE_VALUE, HOSTILE_VALUE)])
        for n, value in enumerate(values)
    ]


def _payments(at: int) -> tuple[list[Record], list[Record]]:
    key = {"keytype": "SCHEMA", "subject": "payments-value", "version": 1, "magic": 1}
    value = {"subject": "payments-value", "version": 1, "id": 7, "schema": AVRO, "deleted": False}
    schemas = [Record(offset=0, timestamp=at, key=json.dumps(key).encode(), value=json.dumps(value).encode())]
    bodies = [struct.pack(">bI", 0, 7) + b"\x06eve\xd0\x0f", struct.pack(">bI", 0, 9) + b"\x06eve\xd0\x0f"]
    return [Record(offset=n, timestamp=at + n, key=b"p", value=body) for n, body in enumerate(bodies)], schemas


def schedule(now: int) -> ScheduleState:
    """A scheduler that is alive, with a job that ends well and one that does not."""
    good = JobOutcome(slot_ms=now, started_ms=now - 9000, finished_ms=now - 5000, exit_code=0, verdict="complete")
    bad = replace(good, exit_code=1, verdict="failed", error="the store <did> not answer", hint="look at it")
    jobs = {
        "nightly": JobState(verb="backup", since_ms=0, when="0 3 * * *", next_ms=now + DAY_MS).ended(good),
        "sweep": JobState(verb="compact", since_ms=0, when="every 1h").ended(good).ended(bad).ended(bad),
    }
    return ScheduleState(instance="i", host="ops1", at_ms=now, takeover_ms=DAY_MS, started_ms=now, jobs=jobs)


def _groups(made: ShownArchive) -> tuple[Group, ...]:
    offsets = tuple(
        CommittedOffset(
            topic=ORDERS,
            topic_id=place.topic_id,
            partition=place.partition,
            offset=end - 11,
            leader_epoch=0,
            metadata="",
        )
        for place, end in made.ends.items()
        if place.topic_id == id_of(ORDERS)
    )
    return (Group(group_id="billing", type="classic", state="Stable", protocol_type="consumer", offsets=offsets),)


def _ending(day: int, days: int) -> dict[str, Any]:
    if day == days - 4:
        return {"exit_code": 3, "findings": ["orders-2 offsets are <missing>"], "hints": ["look at the broker's log"]}
    if day == days - 6:
        return {"exit_code": 1, "findings": ["the store did not answer"]}
    return {}


def _prove(made: ShownArchive, now: int) -> None:
    storage = made.archive.storage
    at = now - 2 * DAY_MS
    record_proof(
        storage,
        Proof(
            kind=ProofKind.DEEP_CHECK,
            verdict="sound",
            sound=True,
            started_at_ms=at - 60_000,
            finished_at_ms=at,
            details={"share": 1.0},
        ),
    )
    for number, (verdict, speed) in enumerate([("proven", 900), ("differs", 700), ("proven", 1400)]):
        then = now - (20 - 8 * number) * DAY_MS
        details = {"records": 10_000, "restore_s": 10_000 / speed, "partitions": 4, "partitions_known": 6}
        record_proof(
            storage,
            Proof(
                kind=ProofKind.DRILL,
                verdict=verdict,
                sound=verdict == "proven",
                started_at_ms=then - 90_000,
                finished_at_ms=then,
                details=details,
            ),
        )

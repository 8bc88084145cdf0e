"""The captured schema registry in a drill: read whole, and looked up for restored records.

Of each partition the first and the last records are looked at: schemas change over time, and the last ones have the
newest. What they begin with is counted by columns, in this process: the sample is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

import numpy as np

from maxbrod.archive.snapshots import find_moment
from maxbrod.batch.schema_ids import Framing, find_ids
from maxbrod.compare.items import CompareItem, CompareSettings
from maxbrod.compare.live import LiveCluster
from maxbrod.compare.plan import ComparedRange, Side
from maxbrod.drill.plan import DrillRequest, scratch_name
from maxbrod.drill.report import DrilledSchemas, UnknownSchema
from maxbrod.errors import RefusedError, UsageError
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.registry.capture import capture_registry
from maxbrod.registry.client import RegistryClient
from maxbrod.registry.plan import in_reference_order
from maxbrod.registry.remap import PARTS, framing_of
from maxbrod.registry.restoration import delete_imported, import_registry
from maxbrod.registry.stored import RegistryCapture, capture_in, read_stored

if TYPE_CHECKING:
    import pyarrow as pa

    from maxbrod.archive.archive import Archive
    from maxbrod.compare.task import SideReader
    from maxbrod.config import Config, KafkaConfig
    from maxbrod.registry.model import RegistryState

PARTITIONS_MAX: Final = 64
OFFSETS: Final = 500
"""The first and the last so many offsets of a partition are looked at."""
_BYTES_MAX: Final = 8 << 20
_SHOWN_MAX: Final = 10


def captured_schemas(archive: Archive, request: DrillRequest) -> tuple[RegistryCapture, RegistryState] | None:
    """The registry that the archive has; None: none was captured.

    CorruptDataError, ObjectNotFoundError: it cannot be read. UsageError: there is none to import.
    """
    moment = find_moment(archive.storage, archive.catalog.runs(), request.selection.as_of, needed=False)
    capture = capture_in(moment.snapshot)
    if capture is not None:
        return capture, read_stored(archive.storage, capture.path).state
    if request.schema_registry is not None:
        raise UsageError("the archive has no captured registry to import", hint="back up with --schema-registry")
    return None


def drill_schemas(
    found: tuple[RegistryCapture, RegistryState],
    config: Config,
    kafka: KafkaConfig,
    request: DrillRequest,
    drill_id: str,
    drawn: Sequence[TopicPartition],
) -> DrilledSchemas:
    """Look the ids of restored records up, and import the schemas into the scratch registry, if one is named."""
    capture, state = found
    known = {version.place: version for version in state.known}
    _, unresolved = in_reference_order(known.values(), known)
    chosen = spread_over_topics(drawn)
    lookup = Lookup(state, request.unframed)
    for where, records in _restored(kafka, drill_id, chosen, config.patience):
        lookup.add(where, records)
    report = DrilledSchemas(
        url=capture.url,
        captured_run=capture.run_id,
        taken_at_ms=capture.taken_at_ms,
        subjects=len(state.subjects),
        versions=len(state.known),
        unresolved=tuple(map(str, unresolved[:_SHOWN_MAX])),
        records=lookup.records,
        partitions=len(chosen),
        found=lookup.found,
        unknown=tuple(lookup.unknown.values())[:_SHOWN_MAX],
        unsure=lookup.unsure,
        untested=tuple(_untested(request, len(chosen), len(drawn), lookup)),
    )
    if request.schema_registry is not None:
        return replace(report, imported_into=request.schema_registry, imported=_import(config, request, state))
    return report


def spread_over_topics(partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """At most `PARTITIONS_MAX`, of as many topics as possible."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for where in sorted(partitions):
        by_topic.setdefault(where.topic, []).append(where)
    turns = [(turn, where) for mine in by_topic.values() for turn, where in enumerate(mine)]
    return [where for _, where in sorted(turns)][:PARTITIONS_MAX]


class Lookup:
    """Counts the schema ids of records that were captured, and of those that were not."""

    def __init__(self, state: RegistryState, unframed: Iterable[str]) -> None:
        self._ids = np.array(sorted({version.id for version in state.known}), np.int64)
        self._guids = {UUID(version.guid).bytes for version in state.known if version.guid is not None}
        self._subjects = tuple(dict.fromkeys(version.subject for version in state.known))
        self._unframed = tuple(unframed)
        self._framings: dict[tuple[str, str], Framing] = {}
        self.records = self.found = self.unsure = 0
        self.unknown: dict[tuple[str, str, str], UnknownSchema] = {}
        """The first record of each topic with each id that was not captured."""

    def add(self, where: TopicPartition, records: pa.RecordBatch) -> None:
        """Count records of a partition, named as in the archive."""
        self.records += records.num_rows
        for part in PARTS:
            framing = self._framing(where.topic, part)
            ids = find_ids(records, part)
            if framing is not Framing.UNFRAMED:
                known = np.isin(ids.ids, self._ids)
                self.found += int(known.sum())
                if framing is Framing.UNKNOWN:
                    # Nothing says that these are ids: they may be numbers.
                    self.unsure += int((~known).sum())
                else:
                    self._add_unknown(where, part, ids.ids[~known].tolist(), ids.offsets[~known].tolist())
            known = np.isin(ids.header_ids, self._ids)
            self.found += int(known.sum())
            self._add_unknown(where, part, ids.header_ids[~known].tolist(), ids.header_offsets[~known].tolist())
            strange = [(guid, offset) for guid, offset in ids.guids if guid not in self._guids]
            self.found += len(ids.guids) - len(strange)
            self._add_unknown(where, part, [guid.hex() for guid, _ in strange], [offset for _, offset in strange])

    def _framing(self, topic: str, part: str) -> Framing:
        if (topic, part) not in self._framings:
            self._framings[topic, part] = framing_of(topic, part, self._subjects, (), self._unframed)
        return self._framings[topic, part]

    def _add_unknown(self, where: TopicPartition, part: str, ids: Sequence[object], offsets: Sequence[int]) -> None:
        for schema, offset in zip(ids, offsets, strict=True):
            first = UnknownSchema(
                topic=where.topic, partition=where.partition, offset=offset, part=part, schema=str(schema)
            )
            self.unknown.setdefault((where.topic, part, str(schema)), first)


def _restored(
    kafka: KafkaConfig, drill_id: str, partitions: Sequence[TopicPartition], patience_s: float
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Records of scratch topics, each with the partition that it was restored from."""
    from maxbrod.compare.task import SideReader  # noqa: PLC0415 - loads numba

    names = {where.topic: scratch_name(drill_id, where.topic) for where in partitions}
    with KafkaClient(kafka) as client:
        cluster = LiveCluster(client, patience_s=patience_s)
        cluster.look(names.values())
    with SideReader(CompareSettings(target=kafka, patience_s=patience_s)) as reader:
        for where in partitions:
            whole = cluster.whole(names[where.topic], where.partition)
            for extent in () if whole is None else ends_of(whole):
                yield from ((where, records) for records in _first_records(reader, extent))


def ends_of(whole: ComparedRange) -> Iterator[ComparedRange]:
    """The first and the last offsets of a range; all of a short one, once."""
    first = whole.clipped(whole.first, whole.first + OFFSETS)
    last = whole.clipped(max(first.end, whole.end - OFFSETS), whole.end)
    yield from (extent for extent in (first, last) if extent.first < extent.end)


def _first_records(reader: SideReader, extent: ComparedRange) -> Iterator[pa.RecordBatch]:
    item = CompareItem(pair=0, side=Side.TARGET, number=0, extent=extent, split=False, by_offset=True)
    size = 0
    for records, _ in reader.read(item):
        yield records
        size += records.nbytes
        if size >= _BYTES_MAX:
            return


def _untested(request: DrillRequest, chosen: int, drawn: int, lookup: Lookup) -> Iterator[str]:
    yield f"records other than the first and last {OFFSETS} offsets of each partition"
    if chosen < drawn:
        yield f"{drawn - chosen:,} of the {drawn:,} restored partitions"
    if lookup.unsure:
        yield (
            f"{lookup.unsure:,} keys or values that begin like a schema id which was not captured, in topics without "
            "a subject of their name"
        )
    yield "whether the data can be decoded with these schemas"
    if request.schema_registry is None:
        yield "the import into a registry (--schema-registry)"


def _import(config: Config, request: DrillRequest, state: RegistryState) -> int:
    """Import into the scratch registry, which is compared then, and delete it all again. Returns the versions."""
    urls = (request.schema_registry or "").split(",")
    with RegistryClient(urls, config.registry, patience_s=config.patience) as client:
        before = capture_registry(client, also=state.scopes)
        for version in before.versions.values():
            raise RefusedError(
                "the scratch registry is not empty",
                operation="drill",
                object_name=str(version),
                hint="name an empty one: a drill deletes what it has imported for good",
            )
        try:
            # Nobody resumes it, so nothing has to be remembered.
            plan = import_registry(client, state, _as_it_is)
        finally:
            delete_imported(client, state, before)
    return len(plan.register)


def _as_it_is(before: Mapping[str, object]) -> Mapping[str, object]:
    return before

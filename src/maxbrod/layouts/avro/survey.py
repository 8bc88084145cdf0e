"""Trivadis' kafka-backup, Avro object container files. A survey by their names, and by their contents if need be.

The headers of our own files say what they hold: one small read each. For the tool's files, the name has the first
offset and the last block the last one: files up to WHOLE_BYTES are read whole, for larger ones only the header and the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from maxbrod.batch.columns import number_column, project
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, RefusedError
from maxbrod.layouts.avro import format as names
from maxbrod.layouts.avro.format import FileName, Header, parse_name, read_blocks, read_header, read_last_block
from maxbrod.layouts.avro.instances import Instance, read_instances
from maxbrod.layouts.foreign import Doubt, Fault, ForeignSegment, Layout, Loss, Survey
from maxbrod.layouts.tree import Facts, is_published, prune_tree, publisher, survey_tree, surveyed_facts
from maxbrod.model import TopicPartition
from maxbrod.storage.interface import ObjectInfo, Storage

WHOLE_BYTES: Final = 1 << 20
_TAIL_BYTES_MAX: Final = 64 << 20
_DAMAGE: Final = (CorruptDataError, RefusedError, ObjectNotFoundError)
"""Errors that are faults of a file; a storage that does not answer is not."""
_REQUESTS: Final = 16
"""Concurrent requests: a cloud answers each after tens of milliseconds."""
_NAMES_EXAMINED: Final = 100
"""Names examined to detect the layout: nearly every object of such an archive has a recognisable name."""


_Copies: TypeAlias = Mapping[str | None, list[tuple[ForeignSegment, int]]]
"""By connector: the segments of a partition that it wrote, and when each was modified."""


def detect(storage: Storage) -> bool:
    names = (parse_name(info.path) for info in islice(storage.list(), _NAMES_EXAMINED))
    return any(name is not None for name in names) or is_published(storage, "avro")


def survey(storage: Storage, instance: str | None = None) -> Survey:
    """`instance` selects the copy of one of two connectors; by default it is the newest complete one."""
    faults: list[Fault] = []
    # Before the files are listed: if files are published in between, more are listed than the facts name, never fewer.
    facts = surveyed_facts(storage, faults)
    choice = _Choice(read_instances(storage), instance)
    files = [
        (name, info) for info in storage.list() if (name := parse_name(info.path)) is not None and choice.includes(name)
    ]
    facts = choice.extend(facts)
    copies: dict[TopicPartition, dict[str | None, list[tuple[ForeignSegment, int]]]] = {}
    with ThreadPoolExecutor(_REQUESTS) as pool:
        looked = pool.map(partial(_look, storage), files)
        for (name, info), (segment, fault, generation) in zip(files, looked, strict=True):
            faults += [fault] if fault else []
            if segment is not None and not choice.counts(name, generation):
                message = f"was left by an earlier generation of {name.instance}"
                faults.append(Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False))
            elif segment is not None:
                found = copies.setdefault(name.where, {}).setdefault(name.instance, [])
                found.append((segment, info.modified_ms))
    segments: list[ForeignSegment] = []
    for where in sorted(copies):
        segments += _without_overlaps(_chosen(choice.candidates(copies[where]), faults), faults)
    return survey_tree(
        "avro",
        segments,
        facts,
        faults,
        topics=[name.where.topic for name, _ in files],
        doubts=choice.doubts({name.where.topic for name, _ in files if choice.is_of_a_tool(name)}),
    )


class _Choice:
    """The files that count where instances of ours take turns. All files of other topics and other tools count."""

    def __init__(self, instances: Mapping[str, Instance], wanted: str | None) -> None:
        self._instances = instances
        self._wanted = wanted
        complete = sorted(
            (instance for instance in instances.values() if instance.stage.complete),
            key=lambda instance: instance.activated_at_ms,
        )
        # Both are complete for a moment after a switch.
        self._active = {instance.topic: instance for instance in complete}

    def includes(self, name: FileName) -> bool:
        if self._wanted is not None:
            return name.instance == self._wanted
        active = self._active.get(name.where.topic)
        return active is None or name.instance == active.name

    def counts(self, name: FileName, generation: int | None) -> bool:
        known = self._instances.get(name.instance or "")
        # One that has not begun a generation has not cleared its place yet: another tool's files are there.
        return known is None or known.generation == (generation or 0)

    def extend(self, facts: Facts) -> Facts:
        """With the facts of the instances whose files count."""
        if self._wanted is not None:
            known = self._instances.get(self._wanted)
            return facts if known is None else known.decode_facts()
        for instance in self._active.values():
            own = instance.decode_facts()
            others = {where: one for where, one in facts.coverage.items() if where.topic != instance.topic}
            facts = Facts(
                cluster_id=own.cluster_id or facts.cluster_id,
                taken_at_ms=max(filter(None, (own.taken_at_ms, facts.taken_at_ms)), default=None),
                topics={**facts.topics, **own.topics},
                groups=own.groups or facts.groups,
                coverage={**others, **own.coverage},
            )
        return facts

    def is_of_a_tool(self, name: FileName) -> bool:
        return name.instance not in self._instances

    def candidates(self, copies: _Copies) -> _Copies:
        """If one of the two connectors is the tool's, and ours has not said that it is active, the tool's is."""
        return {name: copy for name, copy in copies.items() if name not in self._instances} or copies

    def doubts(self, of_a_tool: Collection[str]) -> list[Doubt]:
        """`of_a_tool`: topics of which the tool itself has a copy."""
        topics = {instance.topic for instance in self._instances.values()} - set(self._active)
        if self._wanted is not None:
            known = self._instances.get(self._wanted)
            topics = {known.topic} if known is not None and not known.stage.complete else set()
        what = "no generation of this topic has reached the end of its log, as far as its instances have recorded"
        hint = "wait until the active instance has caught up"
        return [Doubt(what=what, topic=topic, hint=hint, refused=topic not in of_a_tool) for topic in sorted(topics)]


def _chosen(copies: _Copies, faults: list[Fault]) -> list[ForeignSegment]:
    """Two connectors each back up a compacted topic from its beginning: the copy with the higher end offset counts.

    The other one is catching up, or inactive.
    """
    ends = {
        name: (max(segment.end_offset for segment, _ in copy), max(modified_ms for _, modified_ms in copy))
        for name, copy in copies.items()
    }
    best = max(copies, key=lambda name: ends[name])
    for name, copy in copies.items():
        if name != best:
            message = f"belongs to the copy of {name or 'no connector'}; the copy of {best or 'none'} is newer"
            faults += [Fault(path=segment.path, message=message, fatal=False) for segment, _ in copy]
    return [segment for segment, _ in copies[best]]


def _without_overlaps(segments: list[ForeignSegment], faults: list[Fault]) -> list[ForeignSegment]:
    """In order of offsets, each from the end of the one before it."""
    kept: list[ForeignSegment] = []
    for segment in sorted(segments, key=lambda segment: (segment.base_offset, -segment.end_offset)):
        end = kept[-1].end_offset if kept else 0
        if segment.end_offset <= end:
            message = "holds only records that earlier files hold"
            faults.append(Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False))
        elif segment.base_offset < end:
            kept.append(replace(segment, base_offset=end, records=None, details={"from_offset": end}))
        else:
            kept.append(segment)
    return kept


def _look(
    storage: Storage, file: tuple[FileName, ObjectInfo]
) -> tuple[ForeignSegment | None, Fault | None, int | None]:
    """The segment, the fault, and the generation that the file says it belongs to."""
    name, info = file
    segment = partial(ForeignSegment, where=name.where, path=info.path, bytes=info.size)
    try:
        header = read_header(storage, info.path, info.size)
        if names.MARK in header.metadata:
            generation = header.metadata.get(names.GENERATION, b"")
            return _marked(segment, header), None, int(generation) if generation.isdigit() else None
        if info.size > WHOLE_BYTES:
            bounds = _by_its_ends(storage, name, info, header)
            if bounds is not None:
                return segment(base_offset=bounds[0], end_offset=bounds[1], records=None), None, None
    except _DAMAGE as error:
        return None, Fault(path=info.path, message=error.message, offset=name.first_offset), None
    return (*_by_reading(storage, name, info, segment), None)


def _marked(segment: Callable[..., ForeignSegment], header: Header) -> ForeignSegment:
    keys = (names.BASE_OFFSET, names.END_OFFSET, names.RECORDS, names.MIN_TIMESTAMP, names.MAX_TIMESTAMP)
    try:
        base, end, records, lowest, highest = (int(header.metadata[key]) for key in keys)
    except (KeyError, ValueError) as error:
        raise CorruptDataError("the header does not say what the file holds") from error
    if not 0 <= base < end < 1 << 63 or not 0 < records <= end - base:
        raise CorruptDataError(f"the header claims {records} records from offset {base} to {end}")
    return segment(base_offset=base, end_offset=end, records=records, min_timestamp=lowest, max_timestamp=highest)


def _by_its_ends(storage: Storage, name: FileName, info: ObjectInfo, header: Header) -> tuple[int, int] | None:
    """First and end offset of a large file by its first and its last block; None if the last one is not found."""
    from maxbrod.layouts.avro.reader import Reader  # noqa: PLC0415 - compiled: loading it costs seconds

    first = name.first_offset
    reader = partial(Reader, storage.name_of(info.path), name.where, header, project(["offset"]))
    if first is None:
        reading = reader()
        blocks = islice(read_blocks(storage, info.path, info.size, header), 1)
        batches = [*(batch for block in blocks for batch in reading.add(block)), *reading.flush()]
        first = int(number_column(batches[0].column("offset"))[0]) if batches else None
    tail, last = WHOLE_BYTES, None
    while last is None and tail <= _TAIL_BYTES_MAX:
        last = read_last_block(storage, info.path, info.size, header, tail)
        tail *= 4
    if first is None or last is None or not last.count:
        return None
    reading = reader()
    for _ in (*reading.add(last), *reading.flush()):
        pass
    return first, reading.last + 1


def _by_reading(
    storage: Storage, name: FileName, info: ObjectInfo, segment: Callable[..., ForeignSegment]
) -> tuple[ForeignSegment | None, Fault | None]:
    """A file by all of its records, up to the first damage."""
    from maxbrod.layouts.avro.reader import read_file  # noqa: PLC0415 - compiled: loading it costs seconds

    bounds: list[tuple[int, int, int, int, int]] = []
    fault: Fault | None = None
    try:
        for batch in read_file(storage, info.path, info.size, name.where, ["offset", "timestamp_ms"]):
            offset = number_column(batch.column("offset"))
            timestamp = number_column(batch.column("timestamp_ms"))
            times = (int(timestamp.min()), int(timestamp.max()))
            bounds.append((int(offset[0]), int(offset[-1]) + 1, len(offset), *times))
    except _DAMAGE as error:
        fault = Fault(path=info.path, message=error.message, offset=error.offset)
    if not bounds:
        return None, fault
    found = segment(
        base_offset=bounds[0][0],
        end_offset=bounds[-1][1],
        records=sum(bound[2] for bound in bounds),
        min_timestamp=min(bound[3] for bound in bounds),
        max_timestamp=max(bound[4] for bound in bounds),
    )
    return found, fault


LAYOUT: Final = Layout(
    name="avro",
    detect=detect,
    look=survey,
    publish=publisher(names.check_options),
    prune=prune_tree,
    choices=("instance",),
    losses_by=names.losses,
    losses=(
        Loss(what="leader epochs, producer ids and epochs, sequence numbers", real=False),
        Loss(what="which records a transaction wrote, and its markers", real=False),
    ),
)

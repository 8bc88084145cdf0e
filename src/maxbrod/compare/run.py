"""Compares an archive with live topics, or live topics with others: every record, every field.

Spark digests both sides in parts. Only the parts that differ are read again, to find the first differences. The record
counts and checksums of the catalog prove nothing here: all records are read.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, Unpack

from maxbrod.archive.archive import Archive, open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.compact.by_key.plan import DELETE_RETENTION_MS
from maxbrod.compare.archived import BroughtLog, pair_archived, pair_brought, whole_log
from maxbrod.compare.items import (
    LATER,
    Cleaner,
    CompactedItem,
    CompareItem,
    CompareSettings,
    Digested,
    Settled,
    SuspectItem,
    compacted_task,
    difference_task,
    digest_task,
)
from maxbrod.compare.live import LiveCluster, pair_live
from maxbrod.compare.plan import (
    BY_OFFSET,
    NEVER_COMPARED,
    WHOLE_TOPIC,
    ComparedRange,
    ComparePart,
    CompareRequest,
    Match,
    Pair,
    PairVerdict,
    Side,
    Suspect,
    Times,
    cut_map,
    cut_parts,
    find_suspects,
    judge,
    judge_set,
    log_append_notes,
    log_start_notes,
    parse_fields,
    spread,
)
from maxbrod.compare.report import CompareReport, Difference, PartitionComparison
from maxbrod.compare.schemas import compare_schemas
from maxbrod.config import Config, KafkaConfig, StorageConfig, config_with, kafka_config
from maxbrod.errors import UsageError
from maxbrod.kafka.state.cluster_state import TopicState
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import TopicPartition, now_ms
from maxbrod.restore.functions import selection_of
from maxbrod.restore.plan.mapping import encode_map
from maxbrod.restore.plan.request import RestoreRequest, parse_word
from maxbrod.text import counted
from maxbrod.work.executor import Executor, Workers
from maxbrod.work.preflight import needs_of
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.reach import Needs
from maxbrod.work.session import Session
from maxbrod.work.work import Work

if TYPE_CHECKING:
    from maxbrod.keywords import CompareKeywords


_SHARE_OFFSETS: Final = 4_000_000
"""A task holds the keys of so many offsets at most: some 50 bytes each."""


class Comparison:
    """`config.kafka` is the target; the source is `config.archive`, or the cluster of `source`. Use it in a `with`.

    With `brought`, what a link has appended to topics is compared with the source partitions that are its keys.
    """

    def __init__(
        self,
        work: Work,
        request: CompareRequest,
        *,
        source: KafkaConfig | None = None,
        brought: Mapping[TopicPartition, BroughtLog] | None = None,
        workers: Workers | None = None,
    ) -> None:
        """`workers`: use these, and leave them open."""
        config = work.config
        target = config.cluster
        if config.archive is None and source is None:
            raise UsageError(
                "no archive or other cluster is given to compare with", hint="give --archive, or --source HOST:PORT"
            )
        self._work, self._request, self._brought, self._workers = work, request, brought, workers
        self._undo = ExitStack()
        self._clusters: dict[Side, LiveCluster] = {}
        self._archive: Archive | None = None
        if source is None and config.archive is not None:
            self._archive = open_archive(config.archive, config.storage, layout=config.layout, records=True)
        self._settings = CompareSettings(
            target=target,
            source=source,
            archive_url=None if self._archive is None else self._archive.url,
            storage=None if self._archive is None else config.storage,
            ignored=tuple(sorted(request.ignored | NEVER_COMPARED)),
            patience_s=config.patience,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def run(self) -> CompareReport:
        """Compare everything selected. The report tells what could not be read."""
        started_at_ms = now_ms()
        self._work.tell("planning")
        pairs = self._pairs()
        parts = cut_parts(pairs)
        workers = self._workers or self._work.workers(self._needs())
        executor = workers.for_bytes(sum(part.cost_bytes for part in parts))
        digested = self._digest(executor, pairs, parts)
        work = _Judging(pairs, parts, digested)
        self._settle(executor, pairs, work)
        differences = self._look_closer(executor, pairs, work)
        settings = self._settings
        source = settings.source.bootstrap if settings.source is not None else settings.archive_url or ""
        return CompareReport(
            source=source,
            target=settings.target.bootstrap,
            started_at_ms=started_at_ms,
            finished_at_ms=now_ms(),
            ignored=tuple(sorted(map(str, self._request.ignored))),
            partitions=tuple(work.comparisons()),
            differences=tuple(differences[: self._request.differences]),
            schemas=compare_schemas(self._archive, self._work.config, self._request),
        )

    def _pairs(self) -> list[Pair]:
        target = LiveCluster(self._client(self._settings.target), patience_s=self._settings.patience_s)
        self._clusters[Side.TARGET] = target
        if self._archive is not None and self._brought is not None:
            return pair_brought(self._archive, self._request.selection, self._brought)
        if self._archive is not None:
            return pair_archived(self._archive, target, self._request)
        if self._settings.source is None:
            raise AssertionError("the source is either an archive or a cluster")
        source = LiveCluster(self._client(self._settings.source), patience_s=self._settings.patience_s)
        self._clusters[Side.SOURCE] = source
        return pair_live(source, target, self._request)

    def _needs(self) -> Needs:
        settings = self._settings
        clusters = tuple(cluster for cluster in (settings.target, settings.source) if cluster is not None)
        needs = replace(needs_of(self._work.config), clusters=clusters)
        return needs if self._archive is not None else replace(needs, places=())

    def _client(self, config: KafkaConfig) -> KafkaClient:
        return self._undo.enter_context(KafkaClient(config))

    def _digest(self, executor: Executor, pairs: Sequence[Pair], parts: Sequence[ComparePart]) -> list[Digested]:
        tasks = spread(parts, executor.parallelism)
        total = sum(part.cost_bytes for part in parts)
        items = [[make_item(pairs[part.pair], part.side, part.extent, part=part) for part in task] for task in tasks]
        meter = self._work.meter("comparing", total, tasks=len(tasks))
        name = f"compare-{uuid.uuid4().hex[:12]}"
        return executor.run(digest_task, self._settings, items, name=name, meter=meter, stop=self._work.stop)

    def _settle(self, executor: Executor, pairs: Sequence[Pair], work: _Judging) -> None:
        """Find out what compaction explains of the pairs that differ."""
        differing = {number: pairs[number] for number in work.differing()}
        for side, cluster in self._clusters.items():
            if differing:
                cluster.look(pair.topic(side) for pair in differing.values())
        horizons = {side: self._horizons(side, differing, work) for side in Side}
        items = []
        for number, pair in differing.items():
            known = {side: horizons[side][number] for side in Side}
            if all(offset is None for offset in known.values()):
                continue
            if pair.match not in BY_OFFSET or pair.source is None or pair.target is None:
                work.note(
                    number,
                    "the topic is compacted: only a comparison by offset (--offsets exact) can tell what that removed",
                )
                continue
            source, target = (
                Cleaner(horizon_ms=horizon_ms, elsewhere=self._elsewhere(pair, side))
                for side, horizon_ms in known.items()
            )
            whole = self._suspect_item(pair, Suspect(pair=number, source=pair.source, target=pair.target))
            offsets = max(extent.end - extent.first for extent in (pair.source, pair.target))
            shares = offsets // _SHARE_OFFSETS + 1
            items += [
                CompactedItem(pair=number, whole=whole, source=source, target=target, share=share, shares=shares)
                for share in range(shares)
            ]
        if items:
            self._work.tell("looking at what compaction removed")
            name = f"compacted-{uuid.uuid4().hex[:12]}"
            tasks = [[item] for item in items]
            work.settle(executor.run(compacted_task, self._settings, tasks, name=name, stop=self._work.stop))

    def _horizons(self, side: Side, pairs: Mapping[int, Pair], work: _Judging) -> dict[int, int | None]:
        """Before which time tombstones may be gone, of those pairs of which this side is compacted."""
        if not pairs:
            return {}
        topics: dict[str, TopicState] = {}
        if side in self._clusters:
            found = self._clusters[side].state(pair.topic(side) for pair in pairs.values())
            topics = {state.topic_id: state for state in found.topics}
        elif self._archive is not None:
            archive, as_of = self._archive, self._request.selection.as_of
            moment = find_moment(archive.storage, archive.catalog.runs(), as_of)
            topics = {} if moment.cluster is None else {state.topic_id: state for state in moment.cluster.topics}
        at_ms, horizons = now_ms(), {}
        for number, pair in pairs.items():
            extent = pair.extent(side)
            topic = None if extent is None else topics.get(extent.topic_id)
            if topic is not None and topic.compacted is None:
                work.note(number, f"whether {topic.name} is compacted is unknown: the user needs DescribeConfigs on it")
            compacted = (topic is not None and topic.compacted) or (side is Side.SOURCE and pair.compacted)
            configs = (None if topic is None else topic.effective) or {}
            retention_ms = int(configs.get("delete.retention.ms", DELETE_RETENTION_MS))
            horizons[number] = at_ms - retention_ms if compacted else None
        return horizons

    def _elsewhere(self, pair: Pair, side: Side) -> tuple[tuple[CompareItem, int | None], ...]:
        """The records of a partition beside the compared ones: by them the cleaner has removed some of those."""
        compared = pair.extent(side)
        if compared is None:
            return ()
        slices: tuple[Slice, ...] = ()
        if side in self._clusters:
            whole = self._clusters[side].whole(compared.topic, compared.partition)
        elif self._archive is not None:
            slices = whole_log(self._archive, compared, pair.revision)
            ends = [piece.end_offset for piece in slices]
            whole = replace(
                compared, first=min((piece.base_offset for piece in slices), default=0), end=max(ends, default=0)
            )
        if whole is None:
            return ()
        uncut = replace(pair, times=Times(), slices=slices)
        parts: list[tuple[ComparedRange, int | None]] = [
            (whole.clipped(whole.first, compared.first), 0),
            (whole.clipped(compared.end, whole.end), LATER),
        ]
        others = pair.match is Match.BROUGHT and side is Side.TARGET
        if others or pair.times != replace(Times(), cut_target=pair.times.cut_target):
            parts.append((compared, None))
        return tuple((make_item(uncut, side, part), place) for part, place in parts if part.first < part.end)

    def _look_closer(self, executor: Executor, pairs: Sequence[Pair], work: _Judging) -> list[Difference]:
        limit = self._request.differences
        if not limit:
            return []
        items = [self._suspect_item(pairs[suspect.pair], suspect) for suspect in work.suspects(limit)[:limit]]
        self._work.tell("looking for the first differences")
        name = f"differences-{uuid.uuid4().hex[:12]}"
        found = executor.run(
            difference_task, self._settings, [[item] for item in items], name=name, stop=self._work.stop
        )
        return work.differences() + found

    def _suspect_item(self, pair: Pair, suspect: Suspect) -> SuspectItem:
        source, target = (
            make_item(pair, side, extent) for side, extent in zip(Side, (suspect.source, suspect.target), strict=True)
        )
        return SuspectItem(
            source=source,
            target=target,
            source_topic=pair.source_topic,
            target_topic=pair.target_topic,
            limit=self._request.differences,
        )


class _Judging:
    """Derives a verdict for each pair from the digests of parts."""

    def __init__(self, pairs: Sequence[Pair], parts: Sequence[ComparePart], digested: Sequence[Digested]) -> None:
        self._pairs = pairs
        self._digests = {(result.pair, result.side, result.number): result.digest for result in digested}
        self._failures = {result.pair: result.failure for result in digested if result.failure is not None}
        self._settled: dict[int, Settled] = {}
        self._notes: dict[int, list[str]] = {}
        self._parts: dict[int, list[ComparePart]] = {}
        for part in parts:
            self._parts.setdefault(part.pair, []).append(part)
        self._verdicts = [
            judge(number, pair, self._parts.get(number, []), self._digests) for number, pair in enumerate(self._pairs)
        ]

    def differing(self) -> list[int]:
        """The pairs that are not equal, as far as could be read."""
        verdicts = enumerate(self._verdicts)
        return [number for number, verdict in verdicts if not verdict.equal and number not in self._failures]

    def note(self, number: int, words: str) -> None:
        self._notes.setdefault(number, []).append(words)

    def differences(self) -> list[Difference]:
        """Those of pairs that compaction does not explain."""
        return [difference for _, found in sorted(self._settled.items()) for difference in found.differences]

    def settle(self, settled: Iterable[Settled]) -> None:
        """Take over what compaction explains. Each answer is about a share of the keys of a pair."""
        for result in settled:
            known = self._settled.get(result.pair, Settled(pair=result.pair))
            self._settled[result.pair] = Settled(
                pair=result.pair,
                source_removed=known.source_removed + result.source_removed,
                target_removed=known.target_removed + result.target_removed,
                differences=tuple(
                    sorted((*known.differences, *result.differences), key=lambda found: found.first_offset)
                ),
                unexplained=known.unexplained + result.unexplained,
            )
            if result.failure is not None:
                self._failures[result.pair] = result.failure
        for number, found in self._settled.items():
            self._verdicts[number] = replace(self._verdicts[number], equal=not found.unexplained)
            if found.source_removed or found.target_removed:
                self.note(
                    number,
                    f"compaction removed {counted(found.source_removed, 'record')} of the source and "
                    f"{counted(found.target_removed, 'record')} of the target: the last record of each key counts",
                )

    def suspects(self, limit: int) -> list[Suspect]:
        return [
            suspect
            for number, (pair, verdict) in enumerate(zip(self._pairs, self._verdicts, strict=True))
            if not verdict.equal and number not in self._failures and number not in self._settled
            for suspect in find_suspects(number, pair, self._parts.get(number, []), self._digests, limit)
        ]

    def comparisons(self) -> list[PartitionComparison]:
        """One comparison for each pair, but only one for a topic that was compared as a set."""
        comparisons = []

        def topics(number: int) -> tuple[str, str, bool]:
            pair = self._pairs[number]
            return pair.source_topic, pair.target_topic, pair.match is Match.SET

        for (_, _, as_set), group in groupby(range(len(self._pairs)), key=topics):
            numbers = list(group)
            if as_set:
                comparisons.append(self._set(numbers))
            else:
                comparisons += [self._comparison(number, self._verdicts[number]) for number in numbers]
        return comparisons

    def _set(self, numbers: Sequence[int]) -> PartitionComparison:
        first = self._comparison(numbers[0], judge_set([self._verdicts[number] for number in numbers]))
        failures = [self._failures[number] for number in numbers if number in self._failures]
        notes = dict.fromkeys(note for number in numbers for note in self._pairs[number].notes)
        failure = failures[0].as_dict() if failures else None
        return replace(first, partition=WHOLE_TOPIC, notes=tuple(notes), failure=failure)

    def _comparison(self, number: int, verdict: PairVerdict) -> PartitionComparison:
        pair = self._pairs[number]
        source_digest, target_digest = (
            (digest.set_text if pair.match is Match.SET else digest.sequence_text)
            for digest in (verdict.source, verdict.target)
        )
        failure = self._failures.get(number)
        start_notes = log_start_notes(pair)
        source_start, target_start = pair.log_starts or (None, None)
        settled = self._settled.get(number, Settled(pair=number))
        return PartitionComparison(
            source_topic=pair.source_topic,
            target_topic=pair.target_topic,
            partition=pair.partition,
            match=str(pair.match),
            source_records=verdict.source.records,
            target_records=verdict.target.records,
            source_digest=source_digest,
            target_digest=target_digest,
            equal=verdict.equal and failure is None and not start_notes,
            source_log_start=source_start,
            target_log_start=target_start,
            source_removed=settled.source_removed,
            target_removed=settled.target_removed,
            notes=(*start_notes, *pair.notes, *self._notes.get(number, ()), *log_append_notes(verdict)),
            failure=None if failure is None else failure.as_dict(),
        )


def make_item(pair: Pair, side: Side, extent: ComparedRange, *, part: ComparePart | None = None) -> CompareItem:
    """Return the item for reading offsets of one side. Without a part they are read to find differences."""
    is_source, times = side is Side.SOURCE, pair.times
    cuts = is_source or times.cut_target
    offset_map = None
    if is_source and pair.offset_map is not None:
        offset_map = encode_map(cut_map(pair.offset_map, extent.first, extent.end))
    overlapping = (piece for piece in pair.slices if piece.end_offset > extent.first and piece.base_offset < extent.end)
    return CompareItem(
        pair=0 if part is None else part.pair,
        side=side,
        number=0 if part is None else part.number,
        extent=extent,
        split=part is not None and part.split,
        by_offset=pair.match in BY_OFFSET,
        since_ms=times.since_ms if cuts else None,
        until_ms=times.until_ms if cuts else None,
        map=offset_map,
        brought=pair.brought,
        slices=tuple(overlapping) if is_source else (),
        schema_ids=pair.schema_ids if is_source else None,
        erased=None if is_source or pair.offset_map is not None else pair.erased,
    )


def compare(
    *,
    bootstrap: str | None = None,
    archive: str | Path | None = None,
    source: KafkaConfig | Mapping[str, str] | str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    config: Config | Path | str | None = None,
    kafka: KafkaConfig | Mapping[str, str] | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    **options: Unpack[CompareKeywords],
) -> CompareReport:
    """Compare live topics with an archive, or with those of another cluster: every record, every field.

    Args:
        bootstrap: the cluster whose topics are the target.
        archive: the archive to compare with, unless `source` is given.
        source: another cluster to compare with: `host:port`, or how to reach it.
        since_ms: `since` in milliseconds.
        until_ms: `until` in milliseconds.
        config: a configuration, or the path of a configuration file. All other arguments override it.
        kafka: how to reach the target, or client properties of Kafka's own tools.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use. It stays open.
        on_progress: called with each step.
        options: the options of `maxbrod compare`, such as `topics` or `ignore`; docs/reference has them all.

    Returns:
        The report. Check `.equal`: differences, and what could not be read, are reported there, not raised.

    Raises:
        MaxbrodError: nothing could be compared.
    """
    if since_ms is not None:
        options["since"] = since_ms
    if until_ms is not None:
        options["until"] = until_ms
    whole = config_with(config, "compare", options, archive=archive, bootstrap=bootstrap, kafka=kafka, storage=storage)
    other = KafkaConfig(bootstrap=source) if isinstance(source, str) else kafka_config(None, source, None)
    with Work(whole, session=session, on_progress=on_progress) as work:
        return compare_all(work, source=other)


def compare_all(work: Work, *, source: KafkaConfig | None = None) -> CompareReport:
    """Compare as the configuration says, with the archive or with the cluster of `source`.

    UsageError: a value has no meaning, or two contradict each other.
    """
    options = work.config.compare
    request = CompareRequest(
        selection=RestoreRequest(**selection_of(options)),
        match=parse_word(Match, "offsets", options.offsets, known=("auto", "exact", "append", "set")),
        ignored=parse_fields(options.ignore),
        differences=options.differences,
        restore=options.restore,
        schema_registry=options.schema_registry,
    )
    with Comparison(work, request, source=source) as comparison:
        return comparison.run()

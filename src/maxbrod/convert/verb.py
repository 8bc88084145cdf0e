"""Converts an archive from any layout into any other, and proves that the records are the same.

Records that the target already has are not copied again: an interrupted conversion resumes, and a repeated one adds
what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from maxbrod.archive.archive import open_archive
from maxbrod.archive.foreign_target import TargetRequest
from maxbrod.catalog.rows import Segment, new_run_id
from maxbrod.config import StorageConfig
from maxbrod.convert.options import ConvertOptions
from maxbrod.convert.proof import prove
from maxbrod.convert.sides import ConvertSource, NativeTarget, OtherTarget
from maxbrod.errors import EXIT_CORRUPT, EXIT_FAILED, EXIT_INCOMPLETE, MaxbrodError, UnavailableError, UsageError
from maxbrod.layouts.logdir.format import CHECK_CRC
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import PartitionId, now_ms
from maxbrod.notices import Notice, verdict_of, worst_exit_code
from maxbrod.storage.sides import sides_of
from maxbrod.text import counted
from maxbrod.transfer.plan import ConvertPart, shares, waves
from maxbrod.transfer.task import TransferItem, Transferred, TransferSettings, key_of, run_transfer_task
from maxbrod.transform.frame import changes_in, check_transform, run_transform_job
from maxbrod.transform.plan import Changes, Transform, add_changes, shown_for
from maxbrod.work.reach import Needs, Place
from maxbrod.work.report import Report, about
from maxbrod.work.windows import spread
from maxbrod.work.work import Work

_COMMIT_BYTES: Final = 4 << 30


@dataclass(slots=True, kw_only=True)
class ConvertedTopic:
    topic: str
    partitions: int = 0
    records: int = 0
    """Those that this run has written; the target may have held others before."""
    bytes: int = 0
    source_records: int | None = None
    target_records: int | None = None
    """Both sides as they were read again afterwards; None if they were not."""
    source_digest: str | None = None
    target_digest: str | None = None
    equal: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertReport(Report):
    published = ("verdict", "exit_code")
    run_id: str
    source: str
    source_layout: str
    target: str
    target_layout: str
    started_at_ms: int
    finished_at_ms: int
    topics: tuple[ConvertedTopic, ...]
    losses: tuple[str, ...]
    """The facts that the target's layout cannot hold."""
    notices: tuple[Notice, ...]
    changes: tuple[Changes, ...] = ()
    """The changes by the expressions in the records that this run has written."""

    @property
    def exit_code(self) -> int:
        return worst_exit_code(self.notices)

    @property
    def verdict(self) -> str:
        return verdict_of(self.exit_code)


def _failed(done: Transferred, error: MaxbrodError) -> Notice:
    """The notice for a partition that was not converted, or not to its end."""
    offsets = (done.start, done.end) if error.offset is None else (error.offset, error.offset + 1)
    message, code = error.told_of(str(done.where)), error.exit_code or EXIT_FAILED
    return about(done.where, "failed", message, offsets, hint=error.hint, exit_code=code)


class Conversion:
    """One source, one target. Opens both; `run` converts."""

    def __init__(
        self,
        work: Work,
        options: ConvertOptions,
        sides: tuple[StorageConfig, StorageConfig] | None = None,
        *,
        commit_bytes: int = _COMMIT_BYTES,
    ) -> None:
        """`sides` are the storage options of source and target; None: those of the configuration, for each its own."""
        if options.source is None or options.target is None:
            raise UsageError("a conversion needs SRC and DST", hint="see 'maxbrod convert --help'")
        if options.to is None:
            raise UsageError("--to is missing", hint="see 'maxbrod convert --help'")
        urls = options.source, options.target
        source, target = sides or sides_of(work.config.storage, urls, (options.from_storage, options.to_storage))
        transformed = options.where is not None or options.select is not None
        self._transform = Transform(where=options.where, select=options.select) if transformed else None
        self._work, self._options, self._commit_bytes = work, options, commit_bytes
        self._layout, self._storages = options.to, (source, target)
        with work.looking("reading the source"):
            self.source = ConvertSource(options.source, source, options)
        self._run_id = new_run_id()
        if transformed and options.to != NATIVE:
            raise UsageError(
                f"records cannot be transformed on their way into the layout {options.to}",
                operation="convert",
                hint=f"convert them --to {NATIVE} with --where and --select first, and that into {options.to}",
            )
        places = Place(url=options.source, storage=source), Place(url=options.target, storage=target, writes=True)
        self._workers = work.workers(Needs(places=places), jvm_works=transformed)
        self.target = self._open_target(options.target, target)
        self._notices: list[Notice] = []
        self._failures: list[Notice] = []
        self._topics: dict[str, ConvertedTopic] = {}
        self._changes: list[Changes] = []
        self._meter = work.meter("converting")
        self._stuck: set[PartitionId] = set()
        """Partitions of which a part failed: later parts would hide that it is missing."""

    def _open_target(self, url: str, storage: StorageConfig) -> NativeTarget | OtherTarget:
        options = self._options
        request = TargetRequest(
            layout=self._layout,
            codec=options.codec,
            segment_bytes=options.segment_bytes,
            segment_records=options.segment_records,
            extra=options.layout_options or None,
            accept_loss=options.accept_loss,
        )
        if self._transform is not None:
            # The workers of a cluster and the expressions are checked before anything is created at the target.
            self._workers.try_cluster()
            check_transform(self._workers.session(), self._transform)
        if self._layout == NATIVE:
            return NativeTarget(
                url,
                storage,
                request.options(),
                run_id=self._run_id,
                transform=self._transform,
                before_creating=self._workers.try_cluster,
            )
        committed = self.source.is_committed
        return OtherTarget(url, storage, request, self.source.moment, topics=self.source.topics(), committed=committed)

    def run(self) -> ConvertReport:
        """Copy what the target lacks. The report tells what could not be read; other partitions are not affected."""
        self.source.demand_acceptance()
        if isinstance(self.target, OtherTarget):
            self.target.demand_acceptance()
        started_at_ms = now_ms()
        with self._work.looking("planning"):
            whole = list(self.source.parts())
        ended = self._copy_missing(whole)
        if ended and self.source.unchecked and any(failure.exit_code == EXIT_CORRUPT for failure in self._failures):
            whole = self._survey_again()
            ended = self._copy_missing(whole)
        for part in whole:
            self._of(part.topic).partitions += 1
        for topic, count in self.source.topics().items():
            self._of(topic).partitions = max(self._of(topic).partitions, count)
        if ended:
            if isinstance(self.target, NativeTarget):
                self.target.bring_erasures(self.source.archive)
                self.target.bring_registry(self.source.archive, self.source.moment)
            self.target.finish(
                self.source.moment_for(whole),
                self.source.empty(whole),
                failed={failure.topic for failure in self._failures if failure.topic is not None},
                started_at_ms=started_at_ms,
            )
            self._notices += self._vanished()
            # Transformed records differ on purpose.
            if self._options.verify and whole and self._transform is None:
                self._prove(whole)
        return ConvertReport(
            run_id=self._run_id,
            source=self.source.archive.url,
            source_layout=self.source.archive.layout,
            target=self.target.url,
            target_layout=self._layout,
            started_at_ms=started_at_ms,
            finished_at_ms=now_ms(),
            topics=tuple(topic for _, topic in sorted(self._topics.items())),
            losses=tuple(loss.what for loss in self.target.losses),
            changes=add_changes(self._changes),
            notices=(*self.source.faults(), *self.source.notices, *self._notices, *self._failures),
        )

    def _of(self, topic: str) -> ConvertedTopic:
        return self._topics.setdefault(topic, ConvertedTopic(topic=topic))

    def _survey_again(self) -> list[ConvertPart]:
        """Survey the source with checksums, after unknown damage was met. Damaged partitions start over."""
        self._work.tell("looking for damage")
        self.source.survey_with_checksums()
        self.target.withdraw(self._stuck)
        self._stuck.clear()
        self._failures.clear()
        return list(self.source.parts())

    def _copy_missing(self, whole: Sequence[ConvertPart]) -> bool:
        """Copy what the target lacks; False if the conversion was stopped."""
        parts = [part.after(self.target.position(part)) for part in whole]
        parts = [part for part in parts if part.rows]
        total = sum(part.bytes for part in parts)
        self._meter = self._work.meter("converting", total)
        for wave in waves(parts, self._commit_bytes):
            sound = [part for part in wave if part.id not in self._stuck]
            if sound and (self._work.is_stopped() or not self._copy(sound, total)):
                self._note_stopped("the same command resumes")
                return False
        return True

    def _copy(self, wave: Sequence[ConvertPart], bytes_total: int) -> bool:
        """Copy one wave; False if a stop has cut it short."""
        try:
            return self._publish(self._transfer(wave, bytes_total))
        except UnavailableError:
            if self._work.is_stopped():
                return False
            raise

    def _note_stopped(self, then: str) -> None:
        notice = Notice(kind="stopped", message=f"stopped on request: {then}", exit_code=EXIT_INCOMPLETE)
        self._notices.append(notice)

    def _transfer(self, wave: Sequence[ConvertPart], bytes_total: int) -> list[tuple[ConvertPart, Transferred]]:
        settings = TransferSettings(
            run_id=self._run_id,
            layout=self._layout,
            options=self.target.options,
            target_url=self.target.url,
            target=self._storages[1],
            source_url=self.source.archive.url,
            source=self._storages[0],
            shown=() if self._transform is None else tuple(shown_for(self._transform.text)),
        )
        parallelism = self._workers.parallelism
        # Only in our own layout can two tasks write into one partition.
        parts = shares(wave, parallelism) if self._layout == NATIVE else wave
        items = [(part, self._item(part)) for part in parts]
        tasks = spread([(part.bytes, item) for part, item in items], parallelism)
        meter, stop = self._meter, self._work.stop
        meter.begin(len(tasks), sum(part.bytes for part in wave))
        if self._transform is None:
            executor = self._workers.for_bytes(bytes_total)
            done = executor.run(
                run_transfer_task, settings, tasks, name=settings.run_id, meter=meter, stop=stop, gentle=True
            )
        else:
            session = self._workers.session()
            done = run_transform_job(session, settings, self._transform, tasks, meter=meter, stop=stop)
            self._changes += changes_in(done)
        answers = {key_of(transferred): transferred for transferred in done}
        return [(part, answers[key_of(item)]) for part, item in items]

    def _item(self, part: ConvertPart) -> TransferItem:
        held, erasures = self.target.position(part), self.source.archive.erasures()
        return TransferItem(
            where=part.where,
            topic_id=part.topic_id,
            start=part.rows[0].base_offset if held is None else max(held, part.rows[0].base_offset),
            end=part.end,
            survey=self.target.survey_of(part),
            slices=tuple(erasures.slice_of(row) for row in part.rows if isinstance(row, Segment)),
        )

    def _publish(self, answered: Sequence[tuple[ConvertPart, Transferred]]) -> bool:
        """Publish what was written, in order; nothing of a partition after a part that failed.

        Returns False if a stop has cut parts short.
        """
        done, whole = [], True
        for part, outcome in answered:
            if outcome.failure is not None:
                self._stuck.add(part.id)
                if self._work.is_stopped() and outcome.failure.retryable:
                    whole = False
                else:
                    self._failures.append(_failed(outcome, outcome.failure))
            elif part.id not in self._stuck:
                done.append((part, outcome))
        self.target.add(done)
        for part, outcome in done:
            topic = self._of(part.topic)
            topic.records += outcome.records
            topic.bytes += sum(segment.bytes for segment in outcome.segments) + sum(
                part.bytes for part in outcome.slices
            )
        return whole

    def _vanished(self) -> Iterator[Notice]:
        """Notices for partitions without records that the target's layout cannot record."""
        for topic, count in self.source.topics().items():
            known = self.target.partition_count(topic)
            if known is not None and known < count:
                message = (
                    f"{counted(count - known, 'partition')} without records not kept: the layout cannot record them"
                )
                yield Notice(kind="empty", message=message, topic=topic)

    def _prove(self, parts: Sequence[ConvertPart]) -> None:
        # Failed partitions are reported already, and would look like damage.
        stuck = {part.topic for part in parts if part.id in self._stuck}
        target = open_archive(self.target.url, self._storages[1], layout=self._layout)
        try:
            self._notices += prove(
                self._work,
                self._workers.for_bytes(2 * sum(part.bytes for part in parts)),
                (self.source.archive, target),
                [part for part in parts if part.id not in self._stuck],
                {name: topic for name, topic in self._topics.items() if name not in stuck},
                ignored=[loss.field for loss in self.target.losses if loss.field is not None],
                run_id=self._run_id,
            )
        except UnavailableError:
            if not self._work.is_stopped():
                raise
            self._note_stopped("everything is converted, and the same command compares both sides")


def logdir_options(directory: str, archive: str, *, uncommitted_tail: bool = False) -> ConvertOptions:
    """Return the options of a backup of brokers' log directories: a conversion that reads each log once.

    `directory` is a broker's log directory, or a folder with several of them.
    """
    return ConvertOptions(
        source=directory,
        target=archive,
        to=NATIVE,
        from_layout="logdir",
        # Copying checks the checksums, and reads every byte anyway.
        from_options={CHECK_CRC: "false", "uncommitted_tail": str(uncommitted_tail).lower()},
        # As in any backup, every batch is checked when it is read. `check --deep` proves what was written.
        verify=False,
    )

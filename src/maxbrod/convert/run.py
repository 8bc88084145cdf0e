"""Converts an archive from any layout into any other, and proves that the records are the same.

Records that the target already has are not copied again: an interrupted conversion resumes, and a repeated one adds
what is new.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import ValidationError

from maxbrod.archive.archive import open_archive
from maxbrod.catalog.rows import Segment, new_run_id, slice_of
from maxbrod.config import StorageConfig, complaints
from maxbrod.convert.expressions import as_transferred, refuse_layout, settings_of
from maxbrod.convert.plan.parts import ConvertPart, shares, waves
from maxbrod.convert.proof import prove
from maxbrod.convert.report import ConvertReport, TopicCounts, failed
from maxbrod.convert.source import ConvertSource
from maxbrod.convert.targets import NativeTarget, OtherTarget, Target
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE, UsageError
from maxbrod.layouts.logdir.layout import CHECK_CRC
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import PartitionId, now_ms
from maxbrod.notices import Notice
from maxbrod.storage.composed import is_joined
from maxbrod.storage.urls import parse_url
from maxbrod.text import counted
from maxbrod.transfer.task import TransferItem, Transferred, TransferSettings, run_transfer_task
from maxbrod.transform.frame import check_transform, run_transform_job
from maxbrod.transform.plan import Changes, Transform, add_changes
from maxbrod.work.executor import Workers
from maxbrod.work.progress import OnProgress, Progress, silent
from maxbrod.work.reach import Needs, Place
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from maxbrod.archive.foreign_target import TargetRequest
    from maxbrod.config import SparkConfig
    from maxbrod.work.session import Session


_SECTIONS: Final = {"s3": "s3", "gs": "gcs", "az": "azure"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertRequest:
    """Source, target and options. `source_layout` None: detected."""

    source_url: str
    source: StorageConfig
    target_url: str
    target: StorageConfig
    to: TargetRequest
    source_layout: str | None = None
    source_extra: Mapping[str, str] = field(default_factory=dict)
    """Options for reading the source's layout."""
    topics: tuple[str, ...] = ()
    transform: Transform | None = None
    """Expressions that records go through; into our own layout only."""
    verify: bool = True
    commit_bytes: int = 4 << 30


class Convert:
    """One source, one target. Use it in a `with`."""

    def __init__(
        self,
        request: ConvertRequest,
        spark: SparkConfig,
        *,
        session: Session | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
    ) -> None:
        self._request = request
        self._source = ConvertSource(request)
        self._run_id = new_run_id()
        refuse_layout(request.transform, request.to.layout)
        self._on_progress = on_progress
        self.stop = stop or threading.Event()
        self._undo = ExitStack()
        self._workers = self._undo.enter_context(
            Workers(
                spark,
                needs=self._needs(),
                jvm_works=request.transform is not None,
                session=session,
                on_progress=on_progress,
                stop=self.stop,
            )
        )
        self._bytes_total = 0
        self._target = self._open_target()
        self._notices: list[Notice] = []
        self._failures: list[Notice] = []
        self._counts: dict[str, TopicCounts] = defaultdict(TopicCounts)
        self._changes: list[Changes] = []
        self._stuck: set[PartitionId] = set()
        """Partitions of which a part failed: later parts would hide that it is missing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    @property
    def target(self) -> Target:
        return self._target

    @property
    def source_layout(self) -> str:
        return self._source.layout

    def run(self) -> ConvertReport:
        """Copy what the target lacks. The report tells what could not be read; other partitions are not affected."""
        self._source.demand_acceptance(accepted=self._request.to.accept_loss)
        if isinstance(self._target, OtherTarget):
            self._target.demand_acceptance()
        started_at_ms = now_ms()
        self._on_progress(Progress(phase="planning"))
        whole = list(self._source.parts())
        ended = self._copy_missing(whole)
        if ended and self._source.unchecked and any(failure.exit_code == EXIT_CORRUPT for failure in self._failures):
            whole = self._survey_again()
            ended = self._copy_missing(whole)
        for part in whole:
            self._counts[part.topic].partitions += 1
        for topic, count in self._source.topics().items():
            self._counts[topic].partitions = max(self._counts[topic].partitions, count)
        if ended:
            self._target.finish(
                self._source.moment_for(whole),
                self._source.empty(whole),
                failed={failure.topic for failure in self._failures if failure.topic is not None},
                started_at_ms=started_at_ms,
            )
            self._notices += self._vanished()
            # Transformed records differ on purpose.
            if self._request.verify and whole and self._request.transform is None:
                self._prove(whole)
        return ConvertReport(
            run_id=self._run_id,
            source=self._source.archive.url,
            source_layout=self.source_layout,
            target=self._target.url,
            target_layout=self._request.to.layout,
            started_at_ms=started_at_ms,
            finished_at_ms=now_ms(),
            topics=tuple(each.report(name) for name, each in sorted(self._counts.items())),
            losses=tuple(loss.what for loss in self._target.losses),
            changes=add_changes(self._changes),
            notices=(*self._source.faults(), *self._source.notices, *self._notices, *self._failures),
        )

    # Opening

    def _open_target(self) -> NativeTarget | OtherTarget:
        request = self._request
        if request.transform is not None:
            self._check(request.transform)
        if request.to.layout == NATIVE:
            return NativeTarget(
                request.target_url,
                request.target,
                request.to.options(),
                run_id=self._run_id,
                transform=request.transform,
                before_creating=self._check,
            )
        committed = self._source.is_committed
        return OtherTarget(
            request.target_url,
            request.target,
            request.to,
            self._source.moment,
            topics=self._source.topics(),
            committed=committed,
        )

    def _check(self, transform: Transform | None = None) -> None:
        """Check the workers of a cluster, and the expressions, before anything is created at the target."""
        try:
            self._workers.try_cluster()
            if transform is not None:
                check_transform(self._workers.session(), transform)
        except BaseException:
            self._undo.close()
            raise

    def _survey_again(self) -> list[ConvertPart]:
        """Survey the source with checksums, after unknown damage was met. Damaged partitions start over."""
        self._on_progress(Progress(phase="looking for damage"))
        self._source.survey_with_checksums()
        self._target.withdraw(self._stuck)
        self._stuck.clear()
        self._failures.clear()
        return list(self._source.parts())

    # Copying

    def _copy_missing(self, whole: Sequence[ConvertPart]) -> bool:
        """Copy what the target lacks; False if the conversion was stopped."""
        parts = [part.after(self._target.position(part)) for part in whole]
        parts = [part for part in parts if part.rows]
        total, done = sum(part.bytes for part in parts), 0
        self._bytes_total = total
        for wave in waves(parts, self._request.commit_bytes):
            if self.stop.is_set():
                self._notices.append(_stopped())
                return False
            self._on_progress(Progress(phase="converting", bytes_done=done, bytes_total=total))
            self._transfer([part for part in wave if part.id not in self._stuck])
            done += sum(part.bytes for part in wave)
        return True

    def _transfer(self, wave: Sequence[ConvertPart]) -> None:
        if not wave:
            return
        settings = TransferSettings(
            run_id=self._run_id,
            layout=self._request.to.layout,
            options=self._target.options,
            target_url=self._target.url,
            target=self._request.target,
            source_url=self._source.archive.url,
            source=self._request.source,
        )
        parallelism = self._workers.parallelism
        # Only in our own layout can two tasks write into one partition.
        parts = shares(wave, parallelism) if self._request.to.layout == NATIVE else wave
        items = [(part, self._item(part)) for part in parts]
        tasks = spread([(part.bytes, item) for part, item in items], parallelism)
        if self._request.transform is None:
            executor = self._workers.for_bytes(self._bytes_total)
            done = executor.run(run_transfer_task, settings, tasks, name=settings.run_id)
            answers = {_key(transferred): transferred for transferred in done}
        else:
            transform = self._request.transform
            transformed = run_transform_job(self._workers.session(), settings_of(settings, transform), transform, tasks)
            answers = {_key(each): each for each in as_transferred([item for _, item in items], transformed)}
            self._changes += [each.changes for each in transformed if each.failure is None]
        self._publish([(part, answers[_key(item)]) for part, item in items])

    def _publish(self, answered: Sequence[tuple[ConvertPart, Transferred]]) -> None:
        """Publish what was written, in order; nothing of a partition after a part that failed."""
        done = []
        for part, each in answered:
            if each.failure is not None:
                self._failures.append(failed(each, each.failure))
                self._stuck.add(part.id)
            elif part.id not in self._stuck:
                done.append((part, each))
        self._target.publish(done)
        for _, each in done:
            counts = self._counts[each.where.topic]
            counts.records += each.records
            counts.bytes += sum(segment.bytes for segment in each.segments) + sum(part.bytes for part in each.slices)

    def _vanished(self) -> Iterator[Notice]:
        """Notices for partitions without records that the target's layout cannot record."""
        for topic, count in self._source.topics().items():
            known = self._target.partition_count(topic)
            if known is not None and known < count:
                message = (
                    f"{counted(count - known, 'partition')} without records not kept: the layout cannot record them"
                )
                yield Notice(kind="empty", message=message, topic=topic)

    def _prove(self, parts: Sequence[ConvertPart]) -> None:
        self._on_progress(Progress(phase="comparing both sides"))
        request = self._request
        self._notices += prove(
            self._workers.for_bytes(2 * sum(part.bytes for part in parts)),
            self._source.archive,
            open_archive(request.target_url, request.target, layout=request.to.layout),
            # Failed partitions are reported already, and would look like damage.
            [part for part in parts if part.id not in self._stuck],
            self._counts,
            ignored=[loss.field for loss in self._target.losses if loss.field is not None],
            run_id=self._run_id,
        )
        for topic in {part.topic for part in parts if part.id in self._stuck}:
            self._counts[topic].verified = {}

    def _item(self, part: ConvertPart) -> TransferItem:
        held = self._target.position(part)
        return TransferItem(
            where=part.where,
            topic_id=part.topic_id,
            start=part.rows[0].base_offset if held is None else max(held, part.rows[0].base_offset),
            end=part.end,
            survey=self._target.survey_of(part),
            slices=tuple(slice_of(row) for row in part.rows if isinstance(row, Segment)),
        )

    def _needs(self) -> Needs:
        # Expressions are checked before the target is opened.
        request = self._request
        source = Place(url=request.source_url, storage=request.source)
        return Needs(places=(source, Place(url=request.target_url, storage=request.target, writes=True)))


def _key(either: TransferItem | Transferred) -> tuple[str, int, int]:
    return either.topic_id, either.where.partition, either.start


def _stopped() -> Notice:
    return Notice(kind="stopped", message="stopped on request: the same command resumes", exit_code=EXIT_INCOMPLETE)


def sides_of(
    storage: StorageConfig, urls: tuple[str, str], own: tuple[Mapping[str, str], Mapping[str, str]]
) -> tuple[StorageConfig, StorageConfig]:
    """Return the storage options of both sides: an S3-compatible store and a directory share no setting.

    `own` has each side's settings by their dotted names, such as s3.endpoint.
    A cloud's section of `storage` applies to the sides in that cloud. UsageError: no side is in it.
    """
    schemes = [_scheme(url) for url in urls]
    for scheme, section in _SECTIONS.items():
        if scheme not in schemes and getattr(storage, section) != getattr(StorageConfig(), section):
            raise UsageError(
                f"the options in {section} are for {scheme}://, and neither side is there",
                hint="remove them, or correct SRC or DST",
            )
    source, target = (
        _laid(storage.model_copy(update=_without(_SECTIONS.get(scheme))), given)
        for scheme, given in zip(schemes, own, strict=True)
    )
    return source, target


def _scheme(url: str) -> str:
    return "file" if is_joined(url) else parse_url(url).scheme


def _without(kept: str | None) -> dict[str, Any]:
    """Defaults for the sections of all other clouds."""
    return {name: getattr(StorageConfig(), name) for name in _SECTIONS.values() if name != kept}


def _laid(storage: StorageConfig, given: Mapping[str, str]) -> StorageConfig:
    if not given:
        return storage
    settings: dict[str, Any] = {
        name: dict(value) if hasattr(value, "model_fields_set") else value for name, value in storage
    }
    for name, value in given.items():
        *sections, last = name.split(".")
        place = settings
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise UsageError(f"the storage has no option {name}", hint="see docs/storage.md")
        place[last] = value
    try:
        return StorageConfig.model_validate(settings)
    except ValidationError as error:
        raise UsageError(
            f"the storage options of one side are wrong: {complaints(error, StorageConfig)}", hint="see docs/storage.md"
        ) from None


def logdir_request(
    directory: str,
    archive: str,
    storage: StorageConfig,
    to: TargetRequest,
    *,
    topics: tuple[str, ...] = (),
    uncommitted_tail: bool = False,
) -> ConvertRequest:
    """Return the request of a backup of brokers' log directories: a conversion that reads each log once.

    `directory` is a broker's log directory, or a folder with several of them.
    """
    return ConvertRequest(
        source_url=directory,
        source=storage,
        target_url=archive,
        target=storage,
        source_layout="logdir",
        # Copying checks the checksums, and reads every byte anyway.
        source_extra={CHECK_CRC: "false", "uncommitted_tail": str(uncommitted_tail).lower()},
        topics=topics,
        to=to,
        # As in any backup, every batch is checked when it is read. `check --deep` proves what was written.
        verify=False,
    )

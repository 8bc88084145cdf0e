"""The steps of an interval that differ between `--offsets exact` and `--offsets append`, and what both share.

A piece of work is done in this process or on Spark; a failure becomes the state of its partition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final

from maxbrod.errors import EXIT_CORRUPT, LogTruncatedError, MaxbrodError, SequenceGapError
from maxbrod.kafka.produce.appends import OPERATION as PRODUCE
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.replicate.ingress.plan import MirrorPortion
from maxbrod.replicate.ingress.topics import MirrorTopics
from maxbrod.replicate.link import LinkMark, Offsets, PositionKey, State
from maxbrod.replicate.newest import Newest
from maxbrod.replicate.view import LinkView, MirroredPartition, Orders
from maxbrod.work.executor import Context, Item, Outcome, Task, Workers
from maxbrod.work.progress import Meter, OnProgress
from maxbrod.work.windows import rate_of_one, spread

_LITTLE_BYTES: Final = 1 << 20
_RACE: Final = (SequenceGapError, LogTruncatedError)
"""Another instance has appended the same records, or the destination has lost some: the log end tells how to go on."""


class Mode(ABC):
    """One link in one mode. It begins anew when other instances have worked meanwhile."""

    offsets: ClassVar[Offsets]

    def __init__(self, view: LinkView, workers: Workers, on_progress: OnProgress) -> None:
        self._view, self._client, self._config, self._link = view, view.client, view.config, view.link()
        self._workers, self._on_progress = workers, on_progress
        self.topics = MirrorTopics(view, shared=self.offsets is Offsets.APPEND)
        self.marks: dict[PositionKey, LinkMark] = {}

    @abstractmethod
    def read_marks(self, partitions: Sequence[MirroredPartition]) -> None:
        """Read the marks of the link, if others may have written them since. Call it at each interval."""

    def forget(self) -> None:  # noqa: B027 - what is read at each interval need not be forgotten
        """Forget marks and faults: the partitions were divided anew."""

    def mark_begun(self, partitions: Iterable[MirroredPartition]) -> None:  # noqa: B027 - only mirrors need it
        """Mark partitions before their first record."""

    @abstractmethod
    def append(
        self,
        newest: Newest,
        partitions: Sequence[MirroredPartition],
        orders: Orders,
        producer: ProducerIdentity | None,
    ) -> tuple[int, int]:
        """Append what the destination lacks; `producer` writes markers. Returns the number of records and bytes."""

    @abstractmethod
    def finish(self, newest: Newest, partitions: Sequence[MirroredPartition]) -> None:
        """After appending: follow log starts if the mode does, and mark what was done."""

    @abstractmethod
    def carry_groups(
        self, newest: Newest, partitions: Iterable[MirroredPartition], others: Sequence[MirroredPartition]
    ) -> tuple[int, bool]:
        """Return how many offsets were committed, and False if a group must wait. Other instances have `others`."""

    @abstractmethod
    def ends(self, partitions: Iterable[MirroredPartition]) -> dict[PositionKey, int]:
        """The first source offset that each partition lacks, as far as it is known."""

    def do(
        self,
        items: Sequence[tuple[int, Item]],
        settings: Callable[[float | None], Context],
        task: Task[Context, Item, Outcome],
        *,
        alone: bool,
    ) -> list[Outcome]:
        """Return the outcomes of all items, which come with their sizes in bytes. Spark does what is large.

        `settings` depend on the limit of one task, in bytes a second; `alone` is as for an executor.
        """
        if not items:
            return []
        size = sum(size for size, _ in items)
        executor = self._workers.for_bytes(size)
        # One task waits for all brokers at once. What is little is done before a second one has begun.
        tasks = spread(items, executor.parallelism if size > _LITTLE_BYTES else 1)
        context = settings(rate_of_one(self._config.replicate.rate_bytes_per_s, len(tasks)))
        # What this process appends is little: it is ended, and its marks are put.
        stop = None if executor.in_process else self._workers.stop
        name = f"{'mirror' if self.offsets is Offsets.EXACT else 'append'}-{self._link.name}"
        meter = Meter(self._on_progress, "appending", size)
        meter.begin(len(tasks), size)
        return executor.run(task, context, tasks, name=name, meter=meter, stop=stop, alone=alone)

    def portions(
        self, newest: Newest, begins: Mapping[PositionKey, int], partitions: Iterable[MirroredPartition]
    ) -> list[tuple[MirroredPartition, MirrorPortion]]:
        """Return what to append to partitions that lack something, from `begins` on. States tell what is lost."""
        wanted = {each.id: (begins[each.key], each.extent.end) for each in partitions if each.key in begins}
        if not wanted:
            return []
        found = self._view.portions(newest, wanted, accept_gaps=self._config.replicate.accept_gaps)
        lacking = [(each, found[each.id]) for each in partitions if each.key in begins]
        for partition, portion in lacking:
            partition.lacks(portion)
        return [(partition, portion) for partition, portion in lacking if portion.end > begins[partition.key]]


def judge_failure(failure: MaxbrodError) -> tuple[State, str]:
    """The state of a partition that could not be appended to, and why."""
    shown = failure.as_dict()
    why = f"{shown['message']} ({shown['object_name']})" if failure.object_name else str(shown["message"])
    if failure.retryable or isinstance(failure, _RACE):
        return State.CATCHING_UP, why
    if failure.exit_code == EXIT_CORRUPT and failure.operation != PRODUCE:
        # While a bucket is copied here, an object that is missing or cut off may still arrive.
        return State.LATE_SEGMENT, why
    return State.FAULTED, why

"""The steps of an interval that differ between `--offsets exact` and `--offsets append`, and what both share.

A piece of work is done in this process or on Spark; a failure becomes the state of its partition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from maxbrod.errors import EXIT_CORRUPT, LogTruncatedError, MaxbrodError, SequenceGapError
from maxbrod.kafka.produce.refusals import OPERATION as PRODUCE
from maxbrod.replicate.ingress.topics import MirrorTopics
from maxbrod.replicate.link import LinkMark, Offsets, PositionKey, State
from maxbrod.replicate.view import places_of
from maxbrod.work.executor import Context, Item, LocalExecutor, Outcome, Task, Workers
from maxbrod.work.progress import OnProgress, Progress
from maxbrod.work.reach import Needs, Place
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from maxbrod.config import Config
    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.model import TopicPartition
    from maxbrod.replicate.ingress.plan import MirrorPortion
    from maxbrod.replicate.view import LinkView, MirroredPartition, Newest, Orders
    from maxbrod.work.session import Session

_RACE: Final = (SequenceGapError, LogTruncatedError)
"""Another instance has appended the same records, or the destination has lost some: the log end tells how to go on."""


class IngressWorkers:
    """Does the work of intervals: in this process, or on a Spark session that is opened when it is first needed."""

    def __init__(self, config: Config, session: Session | None, on_progress: OnProgress, stop: threading.Event) -> None:
        kafka, url = places_of(config)
        place = Place(url=url, storage=config.storage)
        needs = Needs(clusters=(kafka,), places=(place,), patience_s=config.patience)
        self._on_progress, self._stop = on_progress, stop
        self._workers = Workers(config.spark, needs=needs, session=session, on_progress=on_progress, stop=stop)

    def close(self) -> None:
        self._workers.close()

    def do(
        self,
        name: str,
        items: Sequence[tuple[int, Item]],
        settings: Callable[[int], Context],
        task: Task[Context, Item, Outcome],
        *,
        alone: bool,
    ) -> list[Outcome]:
        """Return the outcomes of all items, which come with their sizes in bytes.

        `settings` depend on the number of tasks; `alone` is as for an executor.
        """
        if not items:
            return []
        size = sum(size for size, _ in items)
        self._on_progress(Progress(phase="appending", bytes_total=size))
        executor = self._workers.for_bytes(size)
        tasks = spread(items, executor.parallelism)
        # What this process appends is little: it is ended, and its marks are put.
        stop = None if isinstance(executor, LocalExecutor) else self._stop
        return executor.run(task, settings(len(tasks)), tasks, name=name, stop=stop, alone=alone)


class Mode(ABC):
    """One link in one mode. It begins anew when other instances have worked meanwhile."""

    offsets: ClassVar[Offsets]

    def __init__(self, config: Config, client: KafkaClient, view: LinkView, workers: IngressWorkers) -> None:
        self._config, self._client, self._view, self._workers = config, client, view, workers
        self._link, shared = view.link(), self.offsets is Offsets.APPEND
        self.topics = MirrorTopics(
            client, self._link, config.replicate.configs, patience_s=config.patience, shared=shared
        )
        self.mirror_marks: dict[TopicPartition, LinkMark] = {}
        """The marks of mirrors; a link that appends has positions instead."""

    @abstractmethod
    def read_marks(self, partitions: Sequence[MirroredPartition]) -> None:
        """Read the marks of the link, if others may have written them since. Call it at each interval."""

    def forget(self) -> None:  # noqa: B027 - what is read at each interval need not be forgotten
        """Forget marks and faults: the partitions were divided anew."""

    @abstractmethod
    def marks_of(self, partitions: Iterable[MirroredPartition]) -> dict[PositionKey, LinkMark]: ...

    @abstractmethod
    def drop_mark(self, partition: MirroredPartition) -> None: ...

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

    def rate(self, tasks: int) -> float | None:
        """The limit of one of some tasks, in bytes a second."""
        rate = self._config.replicate.rate_bytes_per_s
        return None if rate is None else rate / tasks


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

"""Sends objects to the target, wave by wave, and adds up how that went."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from maxbrod.copy.plan import ListedObjects, ObjectToCopy
from maxbrod.copy.task import CopyContext, CopyOutcome, copy_objects
from maxbrod.errors import EXIT_CORRUPT, FrozenObjectError, MaxbrodError, ObjectNotFoundError, StoppedError
from maxbrod.notices import Notice
from maxbrod.work.executor import LOCAL_BYTES_MAX
from maxbrod.work.reach import Needs, Place
from maxbrod.work.windows import cut_waves, rate_of_one, spread
from maxbrod.work.work import Work

_WAVE_BYTES: Final = 8 << 30
_WAVE_OBJECTS: Final = 20_000
_TASKS_PER_CORE: Final = 4
_OBJECT_COST_BYTES: Final = 256 << 10
"""What an object costs beside its bytes: requests, and a sync."""


@dataclass(slots=True)
class CopyTally:
    """What the tasks of one copy have done."""

    objects: int = 0
    bytes: int = 0
    documents: int = 0
    slices: int = 0
    missing: dict[str, MaxbrodError] = field(default_factory=dict)
    """Objects that the source does not have."""
    frozen: dict[str, MaxbrodError] = field(default_factory=dict)
    damaged: dict[str, MaxbrodError] = field(default_factory=dict)

    @property
    def written(self) -> int:
        return self.objects + self.documents

    def notices(self) -> list[Notice]:
        """Damage of the source. What is missing is for the caller to judge."""
        return [
            Notice(kind="corrupt", message=str(error), hint=error.hint, exit_code=EXIT_CORRUPT)
            for _, error in sorted(self.damaged.items())
        ]


class Sender:
    """Runs the tasks of a copy. In threads of this process, unless Spark has a cluster: a disk does not get faster."""

    def __init__(self, work: Work, source: Place, target: Place) -> None:
        self._work, self._source, self._target = work, source, target
        self._workers = work.workers(Needs(places=(source, target)))
        self.tally = CopyTally()

    def begin(self) -> None:
        """Count from zero."""
        self.tally = CopyTally()

    def send(self, objects: Sequence[ObjectToCopy], *, phase: str, there: ListedObjects | None = None) -> None:
        """Copy objects, and note in `there` what the target has then.

        Raises the errors of the target, and those of the source that are not about one object. A stop ends it early.
        """
        meter = self._work.meter(phase, sum(item.bytes for item in objects))
        for wave in cut_waves(objects, bytes_of=_cost, bytes_max=_WAVE_BYTES, rows_max=_WAVE_OBJECTS):
            if self._work.is_stopped():
                return
            executor = self._workers.for_bytes(min(sum(item.bytes for item in wave), LOCAL_BYTES_MAX))
            tasks = spread([(_cost(item), item) for item in wave], executor.parallelism * _TASKS_PER_CORE)
            meter.begin(len(tasks), sum(item.bytes for item in wave))
            at_once = min(len(tasks), executor.parallelism)
            context = CopyContext(
                source=self._source,
                target=self._target,
                rate_bytes_per_s=rate_of_one(self._work.config.copies.rate_bytes_per_s, at_once),
                read_back=self._work.config.copies.read_back,
            )
            try:
                outcomes = executor.run(
                    copy_objects,
                    context,
                    tasks,
                    name=f"copy-{uuid.uuid4().hex[:12]}",
                    meter=meter,
                    stop=self._work.stop,
                    gentle=True,
                )
            except StoppedError:
                return
            self._note(outcomes, {item.path for item in wave if item.slices}, there)
        meter.end()

    def _note(self, outcomes: Sequence[CopyOutcome], large: set[str], there: ListedObjects | None) -> None:
        tally = self.tally
        done = [outcome for outcome in outcomes if outcome.failure is None]
        tally.bytes += sum(outcome.bytes for outcome in done if outcome.path in large)
        tally.slices += sum(outcome.slices for outcome in done)
        tally.objects += sum(outcome.bytes > 0 for outcome in done if outcome.path in large)
        tally.documents += sum(outcome.bytes > 0 for outcome in done if outcome.path not in large)
        if there is not None:
            there.add([outcome.path for outcome in done], [outcome.bytes or outcome.there for outcome in done])
        for outcome in outcomes:
            error = outcome.failure
            if error is None:
                continue
            if not outcome.from_source:
                if self._work.is_stopped() and error.retryable:
                    continue
                raise error
            if isinstance(error, ObjectNotFoundError):
                tally.missing[outcome.path] = error
            elif isinstance(error, FrozenObjectError):
                tally.frozen[outcome.path] = error
            else:
                tally.damaged[outcome.path] = error


def _cost(item: ObjectToCopy) -> int:
    return item.bytes + _OBJECT_COST_BYTES

"""A layout whose parts are modules of its folder, as `layouts/<name>/layout.py` defines it.

Each part is loaded when it is used: reading and writing load numba, which takes a second, and a survey must not.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from maxbrod.layouts.foreign import ClusterFacts, Fault, ForeignSegment, Loss, Survey, WriteOptions
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class ModularLayout:
    """The functions `detect` and `survey` of the module `survey`, `read` of `reading`, `write`, `publish`, `check`."""

    name: str
    losses: Sequence[Loss]
    choices: tuple[str, ...] = ()
    """The options by which `survey` selects one of several archives in one place: its keyword parameters."""
    has_lossy_options: bool = False
    remembers: bool = False
    """Whether `survey` takes what earlier ones have seen."""

    def losses_with(self, options: WriteOptions) -> Sequence[Loss]:
        """The losses of the layout, and of options by which it loses more (`losses` of its module `options`)."""
        more: Sequence[Loss] = self._part("options").losses(options) if self.has_lossy_options else ()
        return (*self.losses, *more)

    def detect(self, storage: Storage) -> bool:
        return bool(self._part("survey").detect(storage))

    def survey(
        self, storage: Storage, options: Mapping[str, str] | None = None, *, seen: dict[str, Any] | None = None
    ) -> Survey:
        unknown = sorted(set(options or {}) - set(self.choices))
        if unknown:
            known = f"it has {', '.join(self.choices)}" if self.choices else "leave it out"
            raise UsageError(f"reading the layout {self.name} has no option {', '.join(unknown)}", hint=known)
        memory = {"seen": seen} if self.remembers else {}
        found: Survey = self._part("survey").survey(storage, **(options or {}), **memory)
        return found

    def read(
        self, storage: Storage, segment: ForeignSegment, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        batches: Iterator[pa.RecordBatch] = self._part("reading").read(storage, segment, columns)
        return batches

    def write(
        self,
        storage: Storage,
        where: TopicPartition,
        records: Iterable[pa.RecordBatch],
        options: WriteOptions,
        *,
        survey: Survey,
    ) -> list[ForeignSegment]:
        written: list[ForeignSegment] = self._part("writing").write(storage, where, records, options, survey)
        return written

    def publish(
        self,
        storage: Storage,
        survey: Survey,
        written: Sequence[ForeignSegment],
        options: WriteOptions,
        facts: ClusterFacts,
    ) -> None:
        self._part("publishing").publish(storage, survey, written, options, facts)

    def check(self, storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
        faults: Iterator[Fault] = self._part("checking").check(storage, survey, deep=deep)
        return faults

    def _part(self, module: str) -> Any:  # noqa: ANN401 - a module of the layout
        return import_module(f"maxbrod.layouts.{self.name}.{module}")

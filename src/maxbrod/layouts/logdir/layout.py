"""The layout `logdir`: the log directories of one broker, or of several. They are read, never written."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn

from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.logdir.names import is_log
from maxbrod.layouts.modular import ModularLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.layouts.foreign import ClusterFacts, Fault, ForeignSegment, Survey, WriteOptions
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

TAIL: Final = "uncommitted_tail"
CHECK_CRC: Final = "check_crc"
_DEFAULTS: Final = {TAIL: "false", CHECK_CRC: "true"}
_NAMES_MAX: Final = 10_000


class LogdirLayout(ModularLayout):
    __slots__ = ()

    def detect(self, storage: Storage) -> bool:
        # By names alone: the survey's module takes long to load.
        return any(is_log(info.path) for info in islice(storage.list(), _NAMES_MAX))

    def survey(
        self, storage: Storage, options: Mapping[str, str] | None = None, *, seen: dict[str, Any] | None = None
    ) -> Survey:
        """The option `uncommitted_tail` includes records above the high watermark.

        `check_crc=false` leaves the checksums, and the middle of large files, to the reader of the segments: it raises
        CorruptDataError if there is damage, or if the middle is not what the ends let assume.
        """
        del seen
        flags = _flags(options or {})
        found: Survey = self._part("survey").survey(storage, uncommitted_tail=flags[TAIL], check_crc=flags[CHECK_CRC])
        return found

    def read_batches(
        self, storage: Storage, segment: ForeignSegment, *, check_crc: bool = True
    ) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
        found: Iterator[tuple[NDArray[np.uint8], BatchHeaders]] = self._part("reading").read_batches(
            storage, segment, check_crc=check_crc
        )
        return found

    def write(
        self,
        storage: Storage,
        where: TopicPartition,
        records: Iterable[pa.RecordBatch],
        options: WriteOptions,
        *,
        survey: Survey,
    ) -> list[ForeignSegment]:
        del where, records, options, survey
        _refuse(storage)

    def publish(
        self,
        storage: Storage,
        survey: Survey,
        written: Sequence[ForeignSegment],
        options: WriteOptions,
        facts: ClusterFacts,
    ) -> None:
        del survey, written, options, facts
        _refuse(storage)

    def check(self, storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
        faults: Iterator[Fault] = self._part("reading").check(storage, survey, deep=deep)
        return faults


def _flags(extra: Mapping[str, str]) -> dict[str, bool]:
    unknown = sorted(set(extra) - set(_DEFAULTS))
    if unknown:
        raise UsageError(f"the layout logdir has no option {', '.join(unknown)}", hint=f"it has {', '.join(_DEFAULTS)}")
    for name, flag in extra.items():
        if flag not in {"true", "false"}:
            raise UsageError(f"{name} is true or false, not {flag!r}")
    return {name: extra.get(name, default) == "true" for name, default in _DEFAULTS.items()}


def _refuse(storage: Storage) -> NoReturn:
    raise RefusedError(
        "a broker's log directory is read, never written",
        object_name=storage.url,
        hint="choose another place, and another layout",
    )


LAYOUT: Final = LogdirLayout(name="logdir", losses=())

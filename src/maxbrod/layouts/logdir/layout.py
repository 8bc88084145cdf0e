"""The layout `logdir` as everything above knows it: the log directories of one broker, or of several. Never written."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NoReturn

from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.logdir.names import is_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.layouts.foreign import ClusterFacts, Fault, ForeignSegment, Loss, Survey, WriteOptions
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

TAIL: Final = "uncommitted_tail"
CHECK_CRC: Final = "check_crc"
_DEFAULTS: Final = {TAIL: "false", CHECK_CRC: "true"}
_NAMES_LOOKED_AT: Final = 10_000


class LogdirLayout:
    name: Final = "logdir"
    losses: Final[Sequence[Loss]] = ()

    def losses_with(self, options: WriteOptions) -> Sequence[Loss]:
        del options
        return self.losses

    def detect(self, storage: Storage) -> bool:
        return any(is_log(info.path) for info in islice(storage.list(), _NAMES_LOOKED_AT))

    def survey(self, storage: Storage, options: Mapping[str, str] | None = None) -> Survey:
        """The option `uncommitted_tail` takes what stands above the high watermark, too.

        `check_crc=false` leaves the checksums to whoever reads the segments: what is damaged is found then.
        """
        from maxbrod.layouts.logdir.survey import survey  # noqa: PLC0415 - not for looking whether it is one

        flags = _flags(options or {})
        return survey(storage, uncommitted_tail=flags[TAIL], check_crc=flags[CHECK_CRC])

    def read(
        self, storage: Storage, segment: ForeignSegment, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        from maxbrod.layouts.logdir.reading import read  # noqa: PLC0415 - as above

        return read(storage, segment, columns)

    def read_batches(
        self, storage: Storage, segment: ForeignSegment, *, check_crc: bool = True
    ) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
        from maxbrod.layouts.logdir.reading import read_batches  # noqa: PLC0415 - as above

        return read_batches(storage, segment, check_crc=check_crc)

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
        from maxbrod.layouts.logdir.reading import check  # noqa: PLC0415 - as above

        return check(storage, survey, deep=deep)


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
        "a broker's log directory is only read, never written",
        object_name=storage.url,
        hint="name another place, and another layout",
    )


LAYOUT: Final = LogdirLayout()

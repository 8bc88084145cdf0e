"""The layout `binlog` as everything above knows it. Loads no numba before records are read or written."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from maxbrod.layouts.binlog.names import is_ours
from maxbrod.layouts.binlog.options import check_options
from maxbrod.layouts.foreign import Loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from maxbrod.layouts.foreign import ClusterFacts, Fault, ForeignSegment, Survey, WriteOptions
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

_NAMES_LOOKED_AT: Final = 100
"""Every object of such an archive has a name that tells; a few others may have strayed in."""


class BinlogLayout:
    name: Final = "binlog"
    losses: Final[Sequence[Loss]] = (
        Loss(what="leader epochs, producer ids and epochs, sequence numbers", real=False),
        Loss(what="which records a transaction wrote, and its markers", real=False),
        Loss(what="the topics' configuration, their number of partitions and of replicas", real=False),
    )

    def detect(self, storage: Storage) -> bool:
        return any(is_ours(info.path) for info in islice(storage.list(), _NAMES_LOOKED_AT))

    def survey(self, storage: Storage) -> Survey:
        from maxbrod.layouts.binlog.survey import survey  # noqa: PLC0415 - not for looking whether it is one

        return survey(storage)

    def read(
        self, storage: Storage, segment: ForeignSegment, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        from maxbrod.layouts.binlog.reading import read  # noqa: PLC0415 - compiled: loading it costs seconds

        return read(storage, segment, columns)

    def write(
        self,
        storage: Storage,
        where: TopicPartition,
        records: Iterable[pa.RecordBatch],
        options: WriteOptions,
        *,
        survey: Survey,
    ) -> list[ForeignSegment]:
        from maxbrod.layouts.binlog.writing import write  # noqa: PLC0415 - compiled: loading it costs seconds

        return write(storage, where, records, options, survey)

    def publish(
        self,
        storage: Storage,
        survey: Survey,
        written: Sequence[ForeignSegment],
        options: WriteOptions,
        facts: ClusterFacts,
    ) -> None:
        from maxbrod.layouts.binlog.publishing import publish  # noqa: PLC0415 - as the others

        check_options(options)
        publish(storage, survey, written, facts.groups)

    def check(self, storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
        from maxbrod.layouts.binlog.checking import check  # noqa: PLC0415 - compiled: loading it costs seconds

        return check(storage, survey, deep=deep)


LAYOUT: Final = BinlogLayout()

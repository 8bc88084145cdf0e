"""The layout `avro` as everything above knows it. Loads no numba before records are read or written."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from maxbrod.layouts.avro.names import parse_name
from maxbrod.layouts.avro.options import check_options
from maxbrod.layouts.foreign import Loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from maxbrod.layouts.foreign import ClusterFacts, Fault, ForeignSegment, Survey, WriteOptions
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

_NAMES_LOOKED_AT: Final = 100
"""Every object of such an archive has a name that tells; a few others may have strayed in."""


class AvroLayout:
    name: Final = "avro"
    losses: Final[Sequence[Loss]] = (
        Loss(what="leader epochs, producer ids and epochs, sequence numbers", real=False),
        Loss(what="which records a transaction wrote, and its markers", real=False),
    )

    def detect(self, storage: Storage) -> bool:
        return any(parse_name(info.path) is not None for info in islice(storage.list(), _NAMES_LOOKED_AT))

    def survey(self, storage: Storage) -> Survey:
        from maxbrod.layouts.avro.survey import survey  # noqa: PLC0415 - not for looking whether it is one

        return survey(storage)

    def read(
        self, storage: Storage, segment: ForeignSegment, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        from maxbrod.layouts.avro.reading import read  # noqa: PLC0415 - compiled: loading it costs seconds

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
        from maxbrod.layouts.avro.writing import write  # noqa: PLC0415 - compiled: loading it costs seconds

        return write(storage, where, records, options, survey)

    def publish(
        self,
        storage: Storage,
        survey: Survey,
        written: Sequence[ForeignSegment],  # noqa: ARG002 - the files are there, and there is no list of them
        options: WriteOptions,
        facts: ClusterFacts,
    ) -> None:
        from maxbrod.layouts.avro.facts import write_facts  # noqa: PLC0415 - as the others

        check_options(options)
        write_facts(storage, survey, facts)

    def check(self, storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
        from maxbrod.layouts.avro.checking import check  # noqa: PLC0415 - compiled: loading it costs seconds

        return check(storage, survey, deep=deep)


LAYOUT: Final = AvroLayout()

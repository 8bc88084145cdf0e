"""CrowdStrike kafka-replicator's archives behind the interface of all layouts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from maxbrod.layouts.foreign import Loss
from maxbrod.layouts.parquet import checking
from maxbrod.layouts.parquet.names import PREFIX, parse_name
from maxbrod.layouts.parquet.reading import read_segment
from maxbrod.layouts.parquet.survey import survey
from maxbrod.layouts.parquet.writing import check_options, write_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from maxbrod.layouts.foreign import ClusterFacts, Fault, ForeignSegment, Survey, WriteOptions
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

_LOOKED_AT_MAX: Final = 1000
_LOSSES: Final = (
    Loss(what="consumer groups and their offsets, unless __consumer_offsets is archived too", real=True),
    Loss(what="topic configurations, partition counts and replication factors", real=False),
    Loss(what="partitions that have no records", real=False),
    Loss(what="producer ids, sequences, leader epochs and which records were written in transactions", real=False),
    Loss(what="transaction markers, which no consumer sees", real=False),
)


@dataclass(frozen=True, slots=True)
class ParquetLayout:
    """`region` chooses one of several in a tree; None takes all, as long as no two have the same partition."""

    region: str | None = None

    @property
    def name(self) -> str:
        return "parquet"

    @property
    def losses(self) -> Sequence[Loss]:
        return _LOSSES

    def detect(self, storage: Storage) -> bool:
        for folder in (PREFIX, ""):
            names = islice(storage.list(folder), _LOOKED_AT_MAX)
            if any(parse_name(info.path) is not None for info in names):
                return True
        return False

    def survey(self, storage: Storage) -> Survey:
        return survey(storage, region=self.region)

    def read(
        self, storage: Storage, segment: ForeignSegment, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return read_segment(storage, segment, columns)

    def write(
        self,
        storage: Storage,
        where: TopicPartition,
        records: Iterable[pa.RecordBatch],
        options: WriteOptions,
        *,
        survey: Survey,
    ) -> list[ForeignSegment]:
        return write_segments(storage, where, records, options, survey=survey)

    def publish(
        self,
        storage: Storage,  # noqa: ARG002 - as every layout has it
        survey: Survey,  # noqa: ARG002
        written: Sequence[ForeignSegment],  # noqa: ARG002
        options: WriteOptions,
        facts: ClusterFacts,  # noqa: ARG002
    ) -> None:
        """Nothing: this layout has no metadata besides its names and footers, so that a written segment counts."""
        check_options(options)

    def check(self, storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
        return checking.check(storage, survey, deep=deep)


LAYOUT: Final = ParquetLayout()

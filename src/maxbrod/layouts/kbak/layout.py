"""The layout as everything above uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.layouts.foreign import Loss
from maxbrod.layouts.kbak import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from maxbrod.layouts.foreign import ClusterFacts, Fault, ForeignSegment, Survey, WriteOptions
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

LOSSES: Final = (
    Loss(what="producer ids, producer epochs, sequence numbers and leader epochs", real=False),
    Loss(what="transaction markers, and which records were written in a transaction", real=False),
    Loss(what="the timestamp type: all times come back as create times", real=False, field="timestamp_type"),
    Loss(what="header keys that are not UTF-8, when the tool itself reads them", real=False),
)


class KbakLayout:
    """osodevops kafka-backup, 0.17 to 0.25."""

    name: str = schema.NAME
    losses: Sequence[Loss] = LOSSES

    # Modules are loaded when they are used: reading and writing load numba, which looking must not.
    def detect(self, storage: Storage) -> bool:
        from maxbrod.layouts.kbak.survey import detect  # noqa: PLC0415 - as above

        return detect(storage)

    def survey(self, storage: Storage, *, backup_id: str | None = None) -> Survey:
        """`backup_id` chooses one of several backups under one root."""
        from maxbrod.layouts.kbak.survey import survey  # noqa: PLC0415 - as above

        return survey(storage, backup_id)

    def read(
        self, storage: Storage, segment: ForeignSegment, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        from maxbrod.layouts.kbak.reading import read  # noqa: PLC0415 - as above

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
        from maxbrod.layouts.kbak.writing import write  # noqa: PLC0415 - as above

        return write(storage, where, records, options, survey)

    def publish(
        self,
        storage: Storage,
        survey: Survey,
        written: Sequence[ForeignSegment],
        options: WriteOptions,
        facts: ClusterFacts,
    ) -> None:
        from maxbrod.layouts.kbak.publishing import publish  # noqa: PLC0415 - as above

        publish(storage, survey, written, options, facts)

    def check(self, storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
        from maxbrod.layouts.kbak.checking import check  # noqa: PLC0415 - as above

        yield from survey.faults
        yield from check(storage, survey, deep=deep)


LAYOUT: Final = KbakLayout()

"""The task that proves a conversion: digests the records of partitions of either archive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.digest import Digest, Field
from maxbrod.errors import MaxbrodError, naming
from maxbrod.layouts.kafka.format import Slice  # noqa: TC001 - pydantic reads the types of fields
from maxbrod.layouts.reader import read_records
from maxbrod.model import TopicPartition  # noqa: TC001 - as above
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from maxbrod.config import StorageConfig
    from maxbrod.storage.interface import Storage

_VALUE_NULL: Final = "value_null"
"""Not a field: a layout that loses it stores a null value as an empty one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """What every task needs besides its items. Holds secrets."""

    run_id: str
    urls: tuple[str, str]
    """The URLs of both archives."""
    storages: tuple[StorageConfig, StorageConfig] = field(repr=False)
    ignored: tuple[str, ...] = ()
    """Fields that one of the layouts cannot hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyItem:
    """Offsets [first, end) of a partition in one of the archives: 0 is the source, 1 the target."""

    archive: int
    where: TopicPartition
    topic_id: str
    first: int
    end: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    archive: int
    where: TopicPartition
    topic_id: str
    digest: Digest
    failure: dict[str, Any] | None = None


def run_verify_task(settings: VerifySettings, items: Sequence[VerifyItem]) -> list[Verified]:
    """The digest of each item. An item that cannot be read has a failure, which is never equal."""
    storages = [open_storage(url, each) for url, each in zip(settings.urls, settings.storages, strict=True)]
    return [_verify(storages[item.archive], item, settings.ignored) for item in items]


def _verify(storage: Storage, item: VerifyItem, ignored: Sequence[str]) -> Verified:
    # Loads numba, which the driver does not need.
    from maxbrod.batch.hashes import digest_records, hash_fields  # noqa: PLC0415

    digest, failure = Digest(), None
    skipped = [Field(name) for name in ignored if name != _VALUE_NULL]
    try:
        with naming(str(item.where)):
            for records in _records(storage, item):
                if _VALUE_NULL in ignored:
                    records = _without_null_values(records)  # noqa: PLW2901 - the same, as far as it can be compared
                places = number_column(records.column("offset"))
                digest = digest.then(digest_records(hash_fields(records), places, skipped))
    except MaxbrodError as error:
        failure = error.as_dict()
    return Verified(archive=item.archive, where=item.where, topic_id=item.topic_id, digest=digest, failure=failure)


def _without_null_values(records: pa.RecordBatch) -> pa.RecordBatch:
    column = records.schema.get_field_index("value")
    return records.set_column(column, records.schema.field(column), pc.fill_null(records.column(column), b""))


def _records(storage: Storage, item: VerifyItem) -> Iterator[pa.RecordBatch]:
    from maxbrod.batch.hashes import COLUMNS  # noqa: PLC0415 - as above

    for stored in item.slices:
        for records in read_records(storage, stored, columns=COLUMNS):
            offsets = number_column(records.column("offset"))
            keep = (offsets >= item.first) & (offsets < item.end)
            chosen = records if keep.all() else records.filter(number_array(keep))
            if chosen.num_rows:
                yield chosen

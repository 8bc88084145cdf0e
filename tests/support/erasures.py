"""Erasures without Spark, and what readers see of an archive afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.config import Config
from maxbrod.erase.verb import erase_archive
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.layouts.reader import read_records
from maxbrod.storage.stores import open_storage
from maxbrod.work.work import Work
from support.native_archives import TOPIC

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.erase.report import EraseReport

Read = tuple[int, bytes | None, bytes | None]


def erase(url: str | Path, *, session: Any = None, stop: Any = None, **options: Any) -> EraseReport:
    given = {"topics": [TOPIC], **options}
    config = Config.model_validate({"archive": str(url), "erase": given})
    with Work(config, session=session, stop=stop) as work:
        return erase_archive(work)


def read(url: str | Path, as_of: str | None = None, *, partition: int = 0, topic: str = TOPIC) -> list[Read]:
    """The records that every reader gets; also proves that rows tile, and that every slice passes the deep check."""
    archive = open_archive(str(url))
    moment = find_moment(archive.storage, archive.catalog.runs(), as_of)
    table = archive.catalog.rows(topic=topic, partition=partition, as_of=moment.ends, revisions=moment.revisions)
    assert find_tiling_faults(table).complete
    found: list[Read] = []
    for row in decode_rows(table):
        if isinstance(row, Segment):
            assert verify_slice(archive.storage, slice_of(row)) == []
            for batch in read_records(archive.storage, archive.erasures().slice_of(row)):
                columns = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
                found += zip(*columns, strict=True)
    return found


def holds_bytes(url: str | Path, needle: bytes) -> list[str]:
    """The objects that contain these bytes. Batches must not be compressed."""
    storage = open_storage(str(url))
    return [info.path for info in storage.list() if needle in bytes(storage.get(info.path))]

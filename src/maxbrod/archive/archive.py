"""Opens an archive: its objects and its catalog together, for reading or for writing.

Every verb, Spark's reader and every stream open archives here, so that all of them see the same rows, snapshots and
topics. Opening for reading changes nothing and needs no write permission.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias

from maxbrod.archive.proofs import PROOFS
from maxbrod.archive.snapshot_document import encode as encode_snapshot
from maxbrod.archive.surveyed import SNAPSHOT_PATH, SurveyedCatalog, rows_of, snapshot_of
from maxbrod.catalog.catalog import Catalog, open_writable
from maxbrod.catalog.table import no_archive
from maxbrod.config import StorageConfig
from maxbrod.layouts.last_records import COLUMNS
from maxbrod.layouts.offsets_topic import TOPIC as OFFSETS_TOPIC
from maxbrod.layouts.offsets_topic import read_offsets_topic
from maxbrod.layouts.registry import NATIVE, READ_ONLY, detect_layout, layout_of
from maxbrod.storage.composed import OverlaidStorage
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maxbrod.layouts.foreign import Layout, Survey
    from maxbrod.storage.interface import Storage

AnyCatalog: TypeAlias = Catalog | SurveyedCatalog

RESTORES: Final = "restores"
"""The folder of the state of restores."""
DRILLS: Final = "drills"
"""The folder of the state of drills."""
HOLDS: Final = "holds"
"""The folder of holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The catalog stands at the version that was read; see `Catalog`."""

    url: str
    options: StorageConfig
    storage: Storage
    catalog: AnyCatalog
    survey: Survey | None = None
    """The contents of another tool's archive; None in our own layout."""

    @property
    def layout(self) -> str:
        return NATIVE if self.survey is None else self.survey.layout


def open_archive(
    url: str,
    options: StorageConfig | None = None,
    *,
    layout: str | None = None,
    extra: Mapping[str, str] | None = None,
    groups: bool = True,
) -> Archive:
    """An archive for reading, ours or another tool's.

    UsageError: there is none. CorruptDataError: its catalog is missing or damaged.

    Args:
        url: a folder or a bucket prefix.
        options: how to reach it.
        layout: the name of its layout; detected by default.
        extra: options of that layout.
        groups: whether to find consumer groups that another tool's archive holds only as the records of
            `__consumer_offsets`. This decodes the whole topic. A table has no groups and is planned for every query
            and every micro-batch, so it does without.
    """
    options = options or StorageConfig()
    storage = open_storage(url, options)
    if layout in {None, NATIVE}:
        catalog = Catalog.find(storage)
        if catalog is not None:
            return Archive(url=storage.url, options=options, storage=storage, catalog=catalog)
        layout = None if layout is not None else detect_layout(storage)
        if layout is None:
            raise no_archive(storage)
    return _open_foreign(storage, options, layout_of(layout or NATIVE), extra, groups=groups)


def open_native(url: str, options: StorageConfig | None = None) -> Archive:
    """An archive in our own layout, for reading. UsageError: there is none."""
    return open_archive(url, options, layout=NATIVE)


def _open_foreign(
    storage: Storage, options: StorageConfig, layout: Layout, extra: Mapping[str, str] | None, *, groups: bool
) -> Archive:
    survey = layout.survey(storage, extra)
    if groups:
        survey = _with_groups(storage, layout, survey)
    snapshot = encode_snapshot(snapshot_of(survey))
    return Archive(
        url=storage.url,
        options=options,
        # The rest of the code finds a snapshot where our own archives have it, and state of ours stays out of the way
        # of the other tool.
        storage=OverlaidStorage(
            storage,
            objects={SNAPSHOT_PATH: snapshot},
            moved=(RESTORES, DRILLS, PROOFS, HOLDS),
            read_only=layout.name in READ_ONLY,
        ),
        catalog=SurveyedCatalog(storage.url, rows_of(survey)),
        survey=survey,
    )


def _with_groups(storage: Storage, layout: Layout, survey: Survey) -> Survey:
    """A layout that stores no groups may still hold the topic in which Kafka stores them."""
    segments = [segment for segment in survey.segments if segment.where.topic == OFFSETS_TOPIC]
    if survey.groups or not segments:
        return survey
    by_partition = groupby(segments, key=lambda segment: segment.where)
    partitions = (
        (batch for segment in group for batch in layout.read(storage, segment, columns=COLUMNS))
        for _, group in by_partition
    )
    return replace(survey, groups=read_offsets_topic(partitions, committed=True).groups())


def open_for_writing(
    url: str,
    options: StorageConfig | None = None,
    *,
    single_writer: bool = False,
    before_creating: Callable[[], object] = lambda: None,
) -> Archive:
    """An archive for writing, created if the place is empty. Takes three requests more than opening for reading.

    `before_creating` is called only then, and may raise: a command that fails at its first step leaves nothing behind.
    RefusedError: the store ignores conditional puts and `single_writer` does not promise that nobody else writes, or
    there are objects but no catalog.
    """
    options = options or StorageConfig()
    storage, catalog = open_writable(url, options, single_writer=single_writer, before_creating=before_creating)
    return Archive(url=storage.url, options=options, storage=storage, catalog=catalog)

"""Opens an archive: its objects and its catalog together, to look at it or to write to it.

Looking changes nothing and needs no right to write.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias

from maxbrod.archive.snapshot_document import encode as encode_snapshot
from maxbrod.archive.surveyed import SNAPSHOT_PATH, rows_of, snapshot_of
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.opening import open_writable
from maxbrod.catalog.surveyed import SurveyedCatalog
from maxbrod.catalog.table import no_archive
from maxbrod.config import StorageConfig
from maxbrod.layouts.last_records import COLUMNS
from maxbrod.layouts.offsets_topic import TOPIC as OFFSETS_TOPIC
from maxbrod.layouts.offsets_topic import read_offsets_topic
from maxbrod.layouts.registry import NATIVE, READ_ONLY, detect_layout, layout_of
from maxbrod.storage.opening import open_storage
from maxbrod.storage.overlay import OverlaidStorage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.layouts.foreign import Layout, Survey
    from maxbrod.storage.interface import Storage

AnyCatalog: TypeAlias = Catalog | SurveyedCatalog

RESTORES: Final = "restores"
"""The folder of what restores remember."""
DRILLS: Final = "drills"
"""The folder of what drills remember."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The catalog stands at the version that was read; see `Catalog`."""

    url: str
    options: StorageConfig
    storage: Storage
    catalog: AnyCatalog
    survey: Survey | None = None
    """What another tool's archive holds; None in our own layout."""


def open_archive(
    url: str, options: StorageConfig | None = None, *, layout: str | None = None, extra: Mapping[str, str] | None = None
) -> Archive:
    """An archive to look at, ours or another tool's, in the layout that it has.

    UsageError: there is none. CorruptDataError: its catalog is missing or damaged.

    `layout` is its name where looking at it would not tell, or tell wrong; `extra` are options of that layout.
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
    return _open_foreign(storage, options, layout_of(layout or NATIVE), extra)


def open_native(url: str, options: StorageConfig | None = None) -> Archive:
    """An archive of our own layout, to look at. UsageError: there is none."""
    return open_archive(url, options, layout=NATIVE)


def _open_foreign(storage: Storage, options: StorageConfig, layout: Layout, extra: Mapping[str, str] | None) -> Archive:
    survey = _with_groups(storage, layout, layout.survey(storage, extra))
    snapshot = encode_snapshot(snapshot_of(survey))
    return Archive(
        url=storage.url,
        options=options,
        storage=OverlaidStorage(
            storage,
            objects={SNAPSHOT_PATH: snapshot},
            moved=(RESTORES, DRILLS),
            read_only=layout.name in READ_ONLY,
        ),
        catalog=SurveyedCatalog(storage.url, rows_of(survey)),
        survey=survey,
    )


def _with_groups(storage: Storage, layout: Layout, survey: Survey) -> Survey:
    """Layouts that keep no groups may still hold the topic in which Kafka keeps them."""
    segments = [each for each in survey.segments if each.where.topic == OFFSETS_TOPIC]
    if survey.groups or not segments:
        return survey
    by_partition = groupby(segments, key=lambda each: each.where)
    partitions = (
        (batch for each in group for batch in layout.read(storage, each, columns=COLUMNS)) for _, group in by_partition
    )
    return replace(survey, groups=read_offsets_topic(partitions, committed=True).groups())


def open_for_writing(url: str, options: StorageConfig | None = None, *, single_writer: bool = False) -> Archive:
    """An archive to write to, made where there is nothing yet. Three requests more than looking: once a run.

    RefusedError: the store ignores conditional puts and `single_writer` does not vouch that nobody else writes, or
    there are objects but no catalog.
    """
    options = options or StorageConfig()
    storage, catalog = open_writable(url, options, single_writer=single_writer)
    return Archive(url=storage.url, options=options, storage=storage, catalog=catalog)

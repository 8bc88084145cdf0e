"""Opens an archive: its objects and its catalog together, for reading or for writing; and keeps the proofs of it.

Every verb, Spark's reader and every stream open archives here, so that all of them see the same rows, snapshots and
topics. Opening for reading changes nothing and needs no write permission.

A check or a drill leaves a proof, `proofs/<time>-<kind>-<nonce>.json`, so that `maxbrod status` can say on any machine
when the archive was last read or restored. Nothing else depends on these objects. Recording needs the right to write;
without it a check still works, and says that it was not recorded.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from typing import Any, Final, TypeAlias

from pydantic import ConfigDict, TypeAdapter, ValidationError

from maxbrod.archive.erasures import NO_ERASURES, Erasures, read_erasures
from maxbrod.archive.snapshot_document import encode as encode_snapshot
from maxbrod.archive.surveyed import SNAPSHOT_PATH, SurveyedCatalog, rows_of, snapshot_of
from maxbrod.catalog.catalog import Catalog, open_writable
from maxbrod.catalog.empty_places import no_archive
from maxbrod.config import StorageConfig
from maxbrod.errors import MaxbrodError, ObjectNotFoundError, UsageError
from maxbrod.layouts.foreign import Layout, Survey
from maxbrod.layouts.internal_topics import COLUMNS, OFFSETS_TOPIC, read_offsets_topic
from maxbrod.layouts.registry import NATIVE, READ_ONLY, detect_layout, layout_of
from maxbrod.storage.composed import OverlaidStorage
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage

AnyCatalog: TypeAlias = Catalog | SurveyedCatalog

RESTORES: Final = "restores"
"""The folder of the state of restores."""
DRILLS: Final = "drills"
"""The folder of the state of drills."""
HOLDS: Final = "holds"
"""The folder of holds."""
PROOFS: Final = "proofs"
"""The folder of proofs."""
PROOFS_KEPT: Final = 20
"""The proofs of each kind that are kept: enough for a trend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The catalog stands at the version that was read; see `Catalog`."""

    url: str
    options: StorageConfig
    storage: Storage
    catalog: AnyCatalog
    survey: Survey | None = None
    """The contents of another tool's archive; None in our own layout."""
    _ledgers: dict[int, Erasures] = field(default_factory=dict, repr=False, compare=False)
    """The ledger of erasures at the version of the catalog for which it was read last."""

    def erasures(self) -> Erasures:
        """What no reader may return. Whoever reads records asks here for the slices of rows.

        Read once for each version of the catalog: an erasure commits after it has put its document.
        """
        if not self.is_native:
            return NO_ERASURES
        version = self.catalog.version
        if version not in self._ledgers:
            found = read_erasures(self.storage)
            self._ledgers.clear()
            self._ledgers[version] = found
        return self._ledgers[version]

    @property
    def layout(self) -> str:
        return NATIVE if self.survey is None else self.survey.layout

    @property
    def is_native(self) -> bool:
        """True in our own layout, which alone records runs and can be opened for writing."""
        return self.survey is None

    @property
    def surveyed(self) -> Survey:
        """The contents of another tool's archive. UsageError in our own layout."""
        if self.survey is None:
            raise UsageError("this archive is in our own layout", object_name=self.url)
        return self.survey


def open_archive(
    url: str,
    options: StorageConfig | None = None,
    *,
    layout: str | None = None,
    extra: Mapping[str, str] | None = None,
    groups: bool = True,
    records: bool = False,
) -> Archive:
    """An archive for reading, ours or another tool's. `records`: the caller is going to read records.

    UsageError: there is none. CorruptDataError: its catalog is missing or damaged. RefusedError: it is encrypted, and
    the key at hand does not open it, or not its `records`.

    Without `layout`, the layout is detected; `extra` are its options. `groups`: also find consumer groups that another
    tool's archive holds only as the records of `__consumer_offsets`. This decodes the whole topic. A table has no
    groups and is planned for every query and every micro-batch, so it does without.
    """
    options = options or StorageConfig()
    storage = open_storage(url, options)
    if layout in {None, NATIVE}:
        catalog = Catalog.find(storage)
        if catalog is not None:
            if records:
                storage.demand_records()
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


class ProofKind(StrEnum):
    QUICK_CHECK = "check"
    DEEP_CHECK = "deep-check"
    DRILL = "drill"
    COPY = "copy"
    """Not of the archive itself: another store has a copy of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One check of the whole archive, one drill, or one copy to another store."""

    __pydantic_config__ = ConfigDict(strict=False, extra="ignore")

    kind: ProofKind
    verdict: str
    sound: bool
    """True if it found nothing wrong."""
    started_at_ms: int
    finished_at_ms: int
    details: dict[str, Any] = field(default_factory=dict)
    """The extent of the check: the share of the archive, the records, how long the parts took."""


_DOCUMENT: Final = TypeAdapter(Proof)


def record_proof(storage: Storage, proof: Proof) -> str | None:
    """Keep a proof, and only the newest of its kind. Returns why it could not be kept; None if it was."""
    name = f"{PROOFS}/{proof.finished_at_ms:013d}-{proof.kind}-{uuid.uuid4().hex[:8]}.json"
    try:
        storage.put(name, json.dumps(asdict(proof), sort_keys=True).encode())
    except MaxbrodError as error:
        return error.message
    # One too many is no harm: the next proof deletes it.
    with suppress(MaxbrodError):
        mine = sorted(info.path for info in storage.list(PROOFS) if f"-{proof.kind}-" in info.path)
        if len(mine) > PROOFS_KEPT:
            storage.delete(mine[:-PROOFS_KEPT])
    return None


def read_proofs(storage: Storage) -> list[Proof]:
    """The proofs that are kept, oldest first. An unreadable one proves nothing."""
    found = []
    for info in sorted(storage.list(PROOFS), key=lambda listed: listed.path):
        with suppress(ValidationError, ObjectNotFoundError):
            found.append(_DOCUMENT.validate_json(bytes(storage.get(info.path))))
    return found


def last_proof(proofs: list[Proof], kind: ProofKind) -> Proof | None:
    return max((proof for proof in proofs if proof.kind is kind), key=lambda proof: proof.finished_at_ms, default=None)

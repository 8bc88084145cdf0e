"""The ledger: what commits took out of use, told a second time, outside the catalog.

Most commits only add rows, and objects tell what those say. A commit that removes or replaces rows, or changes
generations, leaves objects behind that look as if they were still the archive: a retired generation, keys that were
compacted away, pruned records. So such a commit first puts a *document* into the ledger: the rows that it removes and
those that it adds. A rebuild of a lost catalog reads the documents in order.

A document is `ledger/<version>-<nonce>.parquet`. It is put before its commit, so that there may be one without a
commit: its writer was killed. Whoever tries again may put another one for the same version, so that the *number* of a
document has both. Each document names the number of the one before it, which the catalog knows. The newest one and
those that it leads back to count. If the newest one was not committed, it still describes an archive whose objects are
all durable: `gc` deletes it before them. A document of version 0, without rows, says that the ledger was kept from the
beginning on.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from maxbrod.bounds import ROWS_PER_BYTE_MAX
from maxbrod.catalog.codec import Table
from maxbrod.catalog.commits import IDENTITY, widen
from maxbrod.catalog.replaced import meets, merge
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.catalog.validity import find_fault
from maxbrod.errors import CorruptDataError, ObjectNotFoundError
from maxbrod.model import GapReason
from maxbrod.storage.interface import ObjectInfo, Storage

LEDGER: Final = "ledger"
"""The folder of the documents."""
SliceKey: TypeAlias = tuple[str, int, int, int]
"""A slice of an object: path, position, first offset, and the offset behind its last."""
_NONCE_BITS: Final = 24
_NAME: Final = re.compile(rf"{LEDGER}/(\d{{20}})-([0-9a-f]{{{_NONCE_BITS // 4}}})\.parquet")
_REMOVED: Final = "removed"
_PREVIOUS: Final = b"maxbrod.previous"
_DAMAGES: Final = (OSError, KeyError, ValueError, pa.ArrowException, ObjectNotFoundError, CorruptDataError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One commit: its number, and that of the document before it, 0 if there was none."""

    path: str
    modified_ms: int
    number: int
    previous: int
    added: pa.Table
    removed: pa.Table
    """Only the columns that identify a row are set."""


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The sum of all documents that count."""

    documents: list[Document] = field(default_factory=list)
    """In the order of commits."""
    rows: pa.Table = field(default_factory=SCHEMA.empty_table)
    """Rows that some commit added and none has removed since."""
    gone: set[SliceKey] = field(default_factory=set)
    """Slices that no row names any more, though their objects were not lost."""
    dead: list[str] = field(default_factory=list)
    """Documents of commits that never were."""
    silent: list[str] = field(default_factory=list)
    """Documents that say nothing that is not told by the objects."""
    unreadable: list[str] = field(default_factory=list)

    complete: bool = False
    """True if it has been kept since the archive was created: what it does not say never was."""

    @property
    def last(self) -> int:
        """The number of the last document; 0 if there is none."""
        return self.documents[-1].number if self.documents else 0


def version_of(number: int) -> int:
    """The version that the commit of a document was to make. It may have followed others, and made a later one."""
    return number >> _NONCE_BITS


def put_document(storage: Storage, onto: Table, *, added: pa.Table, gone: pa.Table) -> tuple[str, int] | None:
    """Put the document of a commit onto a table, before it; its path and number. None: objects tell what it does."""
    added, gone = (rows.filter(pc.not_equal(rows["kind"], Kind.RUN)) for rows in (added, gone))
    special = pa.array([str(kind) for kind in (Kind.REPLACED, Kind.BUILDING, Kind.GENERATIONS)], pa.string())
    if not gone.num_rows and not pc.any(pc.is_in(added["kind"], value_set=special)).as_py():
        return None
    return _put(storage, onto.log.version + 1, onto.ledger, added, gone)


def begin_ledger(storage: Storage) -> None:
    """Say that an archive that was just created has a ledger."""
    _put(storage, 0, -1, SCHEMA.empty_table(), SCHEMA.empty_table())


def _put(storage: Storage, version: int, previous: int, added: pa.Table, gone: pa.Table) -> tuple[str, int]:
    nonce = secrets.randbits(_NONCE_BITS)
    path = f"{LEDGER}/{version:020}-{nonce:0{_NONCE_BITS // 4}x}.parquet"
    stream = pa.BufferOutputStream()
    identified = widen(gone.select(IDENTITY), SCHEMA)
    rows = pa.concat_tables([_marked(identified, removed=True), _marked(added.select(SCHEMA.names))])
    rows = rows.replace_schema_metadata({_PREVIOUS: str(previous).encode()})
    pq.write_table(rows, stream, compression="zstd", write_page_checksum=True)
    with storage.create(path) as writer:
        writer.write(memoryview(stream.getvalue()))
    return path, version << _NONCE_BITS | nonce


def _marked(rows: pa.Table, *, removed: bool = False) -> pa.Table:
    return rows.append_column(_REMOVED, pa.array([removed] * rows.num_rows, pa.bool_()))


def documents_in(storage: Storage) -> list[tuple[ObjectInfo, int]]:
    """Every document, and its number, in this order."""
    found = ((info, _NAME.fullmatch(info.path)) for info in storage.list(LEDGER))
    listed = [
        (info, int(matched[1]) << _NONCE_BITS | int(matched[2], 16)) for info, matched in found if matched is not None
    ]
    return sorted(listed, key=lambda pair: pair[1])


def read_ledger(
    storage: Storage, *, last: int | None = None, version: int = 0, there: Collection[str] | None = None
) -> Ledger:
    """The ledger up to the document with the number `last`, which the catalog names; None: the newest counts.

    `version` is that of the catalog: `dead` has documents behind the last one up to it. They may be about to be
    committed if they are young. `there` are the objects of the archive: without it, nothing is `silent`.
    """
    ledger, documents = Ledger(), []
    for info, number in documents_in(storage):
        try:
            documents.append(_read(storage, info, number))
        except _DAMAGES:
            ledger.unreadable.append(info.path)
    ledger.complete = any(version_of(document.number) == 0 for document in documents)
    documents = [document for document in documents if version_of(document.number)]
    if last is None:
        # Of two for one version, the second was put because the first was not committed.
        order = max(
            ((version_of(document.number), document.modified_ms, document.number) for document in documents),
            default=(0, 0, 0),
        )
        last, version = order[2], order[0]
    ledger.documents = _chain(documents, last)
    counting = {document.path for document in ledger.documents}
    ledger.dead = [
        document.path
        for document in documents
        if document.path not in counting and (document.number <= last or version_of(document.number) <= version)
    ]
    standing = _fold(ledger)
    if there is not None:
        ledger.silent = [
            document.path
            for document, rows in zip(ledger.documents, standing, strict=True)
            if not _tells(document, rows, ledger.gone, there)
        ]
    return ledger


def named_in_ledger(storage: Storage, *, last: int) -> set[str]:
    """Every object that a row named at some time, as far as the ledger tells: up to the document numbered `last`.

    Without those that were lost: what they held is not in the archive any more.
    """
    found: set[str] = set()
    lost: set[str] = set()
    # One by one, and by column: a ledger may have millions of rows.
    for info, number in reversed(documents_in(storage)):
        if number <= last and version_of(number):
            with suppress(*_DAMAGES):
                document = _read(storage, info, number)
                last = document.previous
                lost |= {key[0] for key in _taken_out(document)}
                for rows in (document.added, document.removed):
                    found.update(pc.unique(rows["path"]).drop_null().to_pylist())
    return found - lost


def _read(storage: Storage, info: ObjectInfo, number: int) -> Document:
    data = pa.py_buffer(storage.get(info.path))
    if pq.read_metadata(pa.BufferReader(data)).num_rows > ROWS_PER_BYTE_MAX * data.size:
        raise ValueError("it claims more rows than its bytes can hold")
    table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
    previous = int((table.schema.metadata or {})[_PREVIOUS])
    removed, rows = table[_REMOVED], table.select(SCHEMA.names).cast(SCHEMA)
    added = rows.filter(pc.invert(removed))
    if previous >= number or find_fault(added) is not None:
        raise ValueError("a row is invalid, or the documents are not in order")
    return Document(
        path=info.path,
        modified_ms=info.modified_ms,
        number=number,
        previous=previous,
        added=added,
        removed=rows.filter(removed),
    )


def _chain(documents: Iterable[Document], last: int) -> list[Document]:
    """The document numbered `last`, and those that it leads back to. `gc` may have deleted some of them."""
    found: list[Document] = []
    for document in sorted(documents, key=lambda document: document.number, reverse=True):
        if document.number <= last:
            found.append(document)
            last = document.previous
    return found[::-1]


def _fold(ledger: Ledger) -> list[pa.Table]:
    """Set what stands after the last document; returns the rows of each that do."""
    standing: dict[tuple[object, ...], tuple[int, int]] = {}
    for number, document in enumerate(ledger.documents):
        lost = _taken_out(document)
        for identity, key in zip(_identities(document.removed), _keys(document.removed), strict=True):
            standing.pop(identity, None)
            if key is not None and key not in lost:
                ledger.gone.add(key)
        for row, (identity, key) in enumerate(zip(_identities(document.added), _keys(document.added), strict=True)):
            standing[identity] = number, row
            if key is not None:
                ledger.gone.discard(key)
    places: list[list[int]] = [[] for _ in ledger.documents]
    for number, row in standing.values():
        places[number].append(row)
    rows = [
        document.added.take(pa.array(sorted(mine), pa.int64()))
        for document, mine in zip(ledger.documents, places, strict=True)
    ]
    ledger.rows = pa.concat_tables([ledger.rows, *rows])
    return rows


def _taken_out(document: Document) -> set[SliceKey]:
    """Slices that became gaps `corrupt`: nothing has replaced them, so that they count again if they come back."""
    added, removed = document.added, document.removed
    corrupt = added.filter(pc.and_(pc.equal(added["kind"], Kind.GAP), pc.equal(added["reason"], GapReason.CORRUPT)))
    if not corrupt.num_rows or not removed.num_rows:
        return set()
    gaps: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for topic_id, partition, *span in zip(*(corrupt[name].to_pylist() for name in IDENTITY[:4]), strict=True):
        gaps.setdefault((topic_id, partition), []).append((span[0], span[1]))
    merged = {place: merge(spans) for place, spans in gaps.items()}
    data = removed.filter(pc.equal(removed["kind"], Kind.DATA))
    places = zip(data["topic_id"].to_pylist(), data["partition"].to_pylist(), strict=True)
    return {
        key
        for place, key in zip(places, _keys(data), strict=True)
        if key is not None and meets(merged.get(place, []), key[2], key[3])
    }


def _identities(rows: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in IDENTITY), strict=True))


def _keys(rows: pa.Table) -> list[SliceKey | None]:
    """The slice that each row names; None of a gap."""
    names = ("path", "position", "base_offset", "end_offset")
    return [None if key[0] is None else key for key in zip(*(rows[name].to_pylist() for name in names), strict=True)]


def slice_keys(rows: pa.Table) -> set[SliceKey]:
    """The slices that rows name."""
    return {key for key in _keys(rows) if key is not None}


def _tells(document: Document, standing: pa.Table, gone: set[SliceKey], there: Collection[str]) -> bool:
    """True if a document says something that objects do not: a gap, a generation, or that an object is out of use."""
    if pc.any(pc.not_equal(standing["kind"], Kind.DATA)).as_py():
        return True
    return any(key in gone and key[0] in there for key in slice_keys(document.removed))

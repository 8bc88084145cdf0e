"""Reads what an archive can prove: its rows, added up, and the documents beside them. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from maxbrod import __version__, strict_json
from maxbrod.archive.archive import Archive, open_archive, read_proofs
from maxbrod.archive.holds import read_holds
from maxbrod.archive.runs import summarise_run
from maxbrod.archive.selection import parse_time_ms
from maxbrod.batch.compression import unpack_document
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.log import entry_name
from maxbrod.catalog.statements import statement_in
from maxbrod.errors import CorruptDataError, MaxbrodError, UsageError
from maxbrod.evidence.plan import GAP_COLUMNS, GatheredFacts, Period, evidence_of
from maxbrod.evidence.report import CatalogSignature, ErasureEvidence, EvidenceReport, KeyEvidence
from maxbrod.inspect.listing import list_topics
from maxbrod.model import GapReason, now_ms

if TYPE_CHECKING:
    from maxbrod.archive.archive import Proof
    from maxbrod.storage.interface import Storage
    from maxbrod.work.work import Work

_ERASURE: Final = re.compile(r"erasures/([A-Za-z0-9-]+)\.json\.zst")
_CERTIFICATE: Final = re.compile(r"erasures/([A-Za-z0-9-]+)\.certificate\.json")
_RING: Final = re.compile(r"keys/(\d+)\.json")
_DAMAGES: Final = (ValueError, TypeError, KeyError, AttributeError, CorruptDataError)
Found = TypeVar("Found")


def gather_evidence(work: Work) -> tuple[EvidenceReport, list[Proof]]:
    """The evidence of the archive that the configuration names, and the proofs of checks and drills in it."""
    config, options = work.config, work.config.evidence
    made_at_ms = now_ms()
    since = None if options.since is None else parse_time_ms(options.since)
    until = made_at_ms if options.until is None else parse_time_ms(options.until)
    if since is not None and since >= until:
        raise UsageError("the period is empty", hint="--since must be before --until, and not in the future")
    with work.looking("reading the archive"):
        archive = open_archive(config.archive_url, config.storage, layout=config.layout)
        facts = gather_facts(archive)
    period = Period(since_ms=since, until_ms=until)
    report = evidence_of(facts, period, made_at_ms=made_at_ms, release=__version__)
    return report, [proof for proof in facts.proofs if period.has(proof.finished_at_ms)]


def gather_facts(archive: Archive) -> GatheredFacts:
    """Read one version of the catalog, and the documents beside it."""
    catalog, storage = archive.catalog, archive.storage
    unreadable: list[str] = []
    signature = _signature(catalog) if isinstance(catalog, Catalog) else None
    certified = {matched[1] for info in storage.list("erasures") if (matched := _CERTIFICATE.fullmatch(info.path))}
    rings = list(_documents(storage, "keys", _RING, _ring, unreadable))
    return GatheredFacts(
        listing=list_topics(archive),
        archive_id=catalog.table.table_id if isinstance(catalog, Catalog) else None,
        version=catalog.version,
        runs=[summarise_run(run) for run in catalog.runs()],
        gaps=catalog.gap_rows(set(GapReason), GAP_COLUMNS),
        proofs=read_proofs(storage),
        holds=_holds(storage, unreadable),
        erasures=[
            _erasure(name, document, certified=name in certified)
            for name, document in _documents(storage, "erasures", _ERASURE, _unpacked, unreadable)
        ],
        encrypted=bool(rings),
        keys=sorted((document for _, document in rings), key=lambda key: key.number),
        catalog_signature=signature,
        unreadable=unreadable,
    )


def _signature(catalog: Catalog) -> CatalogSignature:
    entry = catalog.table.log.files.get(entry_name(catalog.version))
    found = None if entry is None else statement_in(entry, catalog.version)
    return CatalogSignature(
        signed=found is not None,
        version=catalog.version,
        key=None if found is None else found.key,
        signed_at_ms=None if found is None else found.statement.signed_at_ms,
        unsigned=() if found is None else found.statement.unsigned,
    )


def _holds(storage: Storage, unreadable: list[str]) -> list[Any]:
    try:
        return read_holds(storage)
    except MaxbrodError as error:
        unreadable.append(error.object_name or "a hold")
        return []


def _documents(
    storage: Storage,
    folder: str,
    name: re.Pattern[str],
    read: Callable[[str, bytes], Found],
    unreadable: list[str],
) -> Iterator[tuple[str, Found]]:
    """Documents that other verbs keep in a folder of theirs. One that cannot be read is told of, and hides no other."""
    for info in storage.list(folder):
        matched = name.fullmatch(info.path)
        if matched is None:
            continue
        try:
            yield matched[1], read(matched[1], bytes(storage.get(info.path)))
        except _DAMAGES:
            unreadable.append(info.path)


def _unpacked(_: str, data: bytes) -> dict[str, Any]:
    document = strict_json.parse(bytes(unpack_document(data)))
    if not isinstance(document, dict):
        raise TypeError("it is not an object")
    return document


def _erasure(name: str, document: dict[str, Any], *, certified: bool) -> ErasureEvidence:
    """Topics and counts. Hashes of keys, and the salt, stay where they are."""
    found = document.get("erasure")
    fields: dict[str, Any] = found if isinstance(found, dict) else document
    topics = [topic for topic in fields.get("topics") or () if isinstance(topic, dict)]
    ranges = [
        span
        for topic in topics
        for part in topic.get("partitions") or ()
        if isinstance(part, dict)
        for span in part.get("erased") or ()
    ]
    known = all(isinstance(span, list) and len(span) == 2 for span in ranges)
    return ErasureEvidence(
        id=name,
        at_ms=fields.get("at_ms") if isinstance(fields.get("at_ms"), int) else None,
        how=str(fields["how"]) if isinstance(fields.get("how"), str) else None,
        topics=tuple(sorted(str(topic.get("topic")) for topic in topics)),
        offsets=sum(int(end) - int(first) for first, end in ranges) if known else None,
        certified=certified,
    )


def _ring(number: str, data: bytes) -> KeyEvidence:
    """Who could open the archive, by label. What it takes to get a key stays where it is."""
    document = strict_json.parse(data)
    found = document.get("ring")
    fields: dict[str, Any] = found if isinstance(found, dict) else document
    return KeyEvidence(
        number=int(number),
        at_ms=fields.get("at_ms") if isinstance(fields.get("at_ms"), int) else None,
        change=str(fields["change"]) if isinstance(fields.get("change"), str) else None,
        changed=str(fields["changed"]) if isinstance(fields.get("changed"), str) else None,
        recipients=tuple(
            str(recipient.get("label")) for recipient in fields.get("recipients") or () if isinstance(recipient, dict)
        ),
    )

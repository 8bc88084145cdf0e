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
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.log import entry_name
from maxbrod.catalog.statements import statement_in
from maxbrod.errors import CorruptDataError, MaxbrodError, UsageError
from maxbrod.evidence.plan import GAP_COLUMNS, GatheredFacts, Period, evidence_of
from maxbrod.evidence.report import CatalogSignature, ErasureEvidence, EvidenceReport, KeyEvidence
from maxbrod.inspect.listing import list_topics
from maxbrod.model import GapReason, now_ms
from maxbrod.storage.interface import KEYS
from maxbrod.storage.stores import open_plain

if TYPE_CHECKING:
    from maxbrod.archive.archive import Proof
    from maxbrod.storage.interface import Storage
    from maxbrod.work.work import Work

_RING: Final = re.compile(rf"{KEYS}/(\d+)\.json")
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
    # The keys of an encrypted archive are beneath its encryption.
    plain = open_plain(archive.url, archive.options)
    rings = list(_documents(plain, KEYS, _RING, _ring, unreadable)) if archive.is_native else []
    return GatheredFacts(
        listing=list_topics(archive),
        archive_id=catalog.table.table_id if isinstance(catalog, Catalog) else None,
        version=catalog.version,
        runs=[summarise_run(run) for run in catalog.runs()],
        gaps=catalog.gap_rows(set(GapReason), GAP_COLUMNS),
        proofs=read_proofs(storage),
        holds=_holds(storage, unreadable),
        erasures=_erasures(archive, unreadable),
        encrypted=storage.encrypted,
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


def _erasures(archive: Archive, unreadable: list[str]) -> list[ErasureEvidence]:
    """Topics and counts. Hashes of keys, and the salt, stay where they are."""
    try:
        ledger = archive.erasures()
    except MaxbrodError as error:
        unreadable.append(error.object_name or "the ledger of erasures")
        return []
    unfinished = {erasure.id for erasure in ledger.unfinished()}
    return [
        ErasureEvidence(
            id=erasure.id,
            at_ms=erasure.at_ms,
            how=erasure.how,
            topics=tuple(sorted({topic.topic for topic in erasure.topics})),
            offsets=sum(
                end - first
                for topic in erasure.topics
                for part in topic.partitions
                for erased in part.erased
                for first, end in erased.offsets
            ),
            finished=erasure.id not in unfinished,
        )
        for erasure in ledger.documents
    ]


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

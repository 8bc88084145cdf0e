"""The evidence of an archive: as a value, as a signed document, and as files.

It is made to be handed to others. So it has what was counted and measured, names of topics, runs, people and keys, and
nothing that could be a secret: no record, no key, and of documents of others only the fields that are named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from maxbrod.errors import EXIT_DONE
from maxbrod.work.report import Report

if TYPE_CHECKING:
    from maxbrod.archive.archive import Proof
    from maxbrod.signature import SignedKind, SigningKey

VERSION_FIELD: Final = "maxbrod.evidence"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEvidence:
    """What the archive has of one incarnation of a topic."""

    topic: str
    topic_id: str
    newest: bool
    partitions: int
    offsets: int
    records: int
    bytes: int
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    recovery_point_ms: int | None
    """Everything written to it before this can be restored; None: there is no such time, or it is unknown."""
    last_seen: str | None
    """The run that last saw it, if the cluster no longer has it."""
    gaps: Mapping[str, int]
    """Offsets without data, by reason."""
    drilled_at_ms: int | None
    """When a drill last restored records of it and found them equal, as far as proofs are kept; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGaps:
    """The gaps of one topic with one reason that were recorded in the period."""

    topic: str
    topic_id: str
    reason: str
    ranges: int
    offsets: int
    first_recorded_ms: int
    last_recorded_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    run_id: str
    command: str | None
    started_at_ms: int
    finished_at_ms: int
    exit_code: int | None
    """None: it did not record one."""
    stopped: bool
    records: int | None
    bytes: int | None
    topics: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEvidence:
    """All runs of one command in the period."""

    command: str
    runs: int
    succeeded: int
    failed: int
    unknown: int
    """Runs that did not record how they ended."""
    longest_pause_ms: int | None
    """The longest time between the ends of two that succeeded; None: there were fewer than two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEvidence:
    """A copy to another store, which the archive was told of when it ended."""

    at_ms: int
    target: str
    version: int | None
    """The version of the archive that it holds."""
    verdict: str
    sound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofEvidence:
    """A check or a drill."""

    kind: str
    verdict: str
    sound: bool
    started_at_ms: int
    finished_at_ms: int
    partitions: int | None = None
    """The partitions that a drill restored, of `partitions_known`."""
    partitions_known: int | None = None
    records: int | None = None
    restore_s: float | None = None
    """The measured time of the restore."""
    share: float | None = None
    """The part of the archive that a deep check read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneEvidence:
    run_id: str
    command: str
    at_ms: int
    records: int | None
    bytes: int | None
    topics: int | None
    undo_until_ms: int | None
    undone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureEvidence:
    id: str
    at_ms: int
    how: str
    """How the records were chosen: by keys, by a condition, or by what the source had deleted."""
    topics: tuple[str, ...]
    offsets: int
    """The offsets of erased records."""
    finished: bool
    """True if it, or a later one in its place, ended with a certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldEvidence:
    id: str
    what: str
    who: str
    why: str
    at_ms: int
    released_at_ms: int | None
    released_by: str | None
    released_why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEvidence:
    """A change of the keys of an encrypted archive."""

    number: int
    at_ms: int | None
    change: str | None
    changed: str | None
    """The label of the key."""
    recipients: tuple[str, ...]
    """The labels of the keys that could open the archive since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSignature:
    """The claim of the newest version of the catalog. Evidence does not verify it: `check --signature` does."""

    signed: bool
    version: int
    key: str | None
    signed_at_ms: int | None
    unsigned: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceReport(Report):
    archive: str
    archive_id: str | None
    """The id of the catalog; None in another tool's layout."""
    layout: str
    version: int
    """The version of the catalog that was read."""
    maxbrod: str
    """The release that made this."""
    made_at_ms: int
    since_ms: int | None
    until_ms: int
    recovery_point_ms: int | None
    partial: bool
    """True if topics may have been hidden from the last backup."""
    behind: int
    """Partitions that the last backup could not archive to their end."""
    topics: tuple[TopicEvidence, ...]
    gaps: tuple[RecordedGaps, ...]
    commands: tuple[CommandEvidence, ...]
    runs: tuple[RunEvidence, ...]
    """The newest ones in the period."""
    runs_left_out: int
    """Those before them, which are counted in `commands`."""
    drills: tuple[ProofEvidence, ...]
    checks: tuple[ProofEvidence, ...]
    copies: tuple[CopyEvidence, ...]
    prunes: tuple[PruneEvidence, ...]
    erasures: tuple[ErasureEvidence, ...]
    holds: tuple[HoldEvidence, ...]
    encrypted: bool
    """True if maxbrod encrypts it; what the store does is not known."""
    keys: tuple[KeyEvidence, ...]
    catalog_signature: CatalogSignature | None
    """None in another tool's layout."""
    not_tested: tuple[str, ...]
    """What no drill or check in the period has looked at."""
    unknown: tuple[str, ...]
    """What an auditor may ask, and this archive cannot answer."""
    published: ClassVar = ()

    @property
    def exit_code(self) -> int:
        return EXIT_DONE


def _files() -> SignedKind:
    from maxbrod.signature import SignedKind  # noqa: PLC0415 - cryptography: not before it is needed

    return SignedKind(
        part="evidence",
        version_field=VERSION_FIELD,
        version=VERSION,
        noun="evidence",
        called="evidence",
        wrong="this is no evidence of an archive",
    )


def sign_evidence(report: EvidenceReport, key: SigningKey | None) -> dict[str, Any]:
    return _files().sign(report.as_dict(), key)


def write_evidence(document: Mapping[str, Any], folder: Path, proofs: Sequence[Proof] = ()) -> tuple[Path, Path]:
    """Write the signed document and its page, under names that have the time; no file is ever replaced."""
    from maxbrod.evidence.html import render_evidence  # noqa: PLC0415 - draws on the drill's page

    made_at_ms = document["evidence"]["made_at_ms"]
    time = datetime.fromtimestamp(made_at_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S")
    stem = f"evidence-{time}.{made_at_ms % 1000:03}Z"
    return _files().write(folder, stem, document, render_evidence(document, proofs))


def read_evidence(path: Path) -> dict[str, Any]:
    """The document in a file. Its signature is not verified yet."""
    return _files().read(path)

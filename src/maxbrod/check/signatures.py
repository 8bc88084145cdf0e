"""The proof that nobody without the key has changed an archive: `maxbrod check --signature`.

The newest version must be signed by one of the given keys, and so must all before it. Its data files must be those
that are signed, and what they say of objects is proven by digests: a deep check then compares every slice. The version
is pinned in a file outside the archive. A later check follows the chain of signatures from the pin: an archive that was
rolled back, or rolled back and continued, does not lead there.

What rows do not name is not signed: holds, proofs, leases, the ledger, documents of schema registries.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from maxbrod import strict_json
from maxbrod.archive.archive import Archive
from maxbrod.archive.snapshot_document import digest_in
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.codec import DataFile, Table
from maxbrod.catalog.files import digest_of
from maxbrod.catalog.log import LOG_FOLDER, TABLE_FOLDER, entry_name, log_path
from maxbrod.catalog.schema import Kind
from maxbrod.catalog.statements import Statement, describes, linked, read_entries, read_links, statement_in
from maxbrod.check.problems import Problem, ProblemKind
from maxbrod.errors import MaxbrodError, ObjectNotFoundError, TruncatedDataError, UsageError
from maxbrod.layouts.kafka.frames import STRONG
from maxbrod.model import now_ms
from maxbrod.private_files import make_private, opened, state_path
from maxbrod.text import counted, human_time

if TYPE_CHECKING:
    from maxbrod.check.run import CheckReport
    from maxbrod.signature import SigningKey
    from maxbrod.storage.interface import Storage

_READERS: Final = 8
_SNAPSHOTS_READ: Final = 1000
"""How many of the newest snapshots are compared with their digests."""
_PIN_FORMAT: Final = 1
_PIN_FIELD: Final = "maxbrod.pin"
_BRING_BACK: Final = (
    "find out who could write to the storage; restore the archive from a copy or from older object versions"
)
_MOVED: Final = (
    "if the archive was rebuilt or begun again on purpose, remove the pin, and give --since-version with the version "
    "of the rebuild"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureReport:
    """What the signatures of a catalog prove, and what they do not."""

    keys: tuple[str, ...]
    """The names of the keys that were accepted."""
    signed_version: int | None
    """The newest version that one of them has signed; None: none is."""
    signed_by: str | None
    signed_at_ms: int | None
    unsigned: tuple[tuple[int, int], ...]
    """The first and last versions of ranges that no accepted key has signed."""
    since_version: int | None
    """Unsigned versions below this were accepted."""
    data_files: int
    """The data files of the catalog whose digests were compared."""
    weak_slices: int
    """Slices that have only a checksum, which a forger can keep: they were written without a signing key."""
    snapshots: int
    """The snapshots whose digests were compared."""
    snapshots_unproven: int
    """Snapshots without a digest, and those that were not read."""
    pin: str
    pinned_version: int | None
    """The version that the pin had before; None: there was no pin."""
    pinned: bool
    """True if the pin has this version now."""
    pin_problem: str | None = None
    """Why the pin could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The newest version of an archive that a check has seen."""

    archive: str
    version: int
    chain: str
    seen_at_ms: int


def accepted_keys(paths: Sequence[Path]) -> tuple[SigningKey, ...]:
    """The public halves of these keys. UsageError: one cannot prove who has signed."""
    from maxbrod.signature import read_key  # noqa: PLC0415 - cryptography: only if it is asked for

    keys = tuple(map(read_key, paths))
    for path, key in zip(paths, keys, strict=True):
        if key.public is None:
            raise UsageError(
                "this key cannot prove who has signed a catalog",
                object_name=str(path),
                hint="give an Ed25519 public key",
            )
    return keys


def default_pin(archive_url: str) -> Path:
    """Where the pin of an archive is unless told otherwise: in the user's state folder."""
    return state_path() / "pins" / f"{hashlib.sha256(archive_url.encode()).hexdigest()[:32]}.json"


def check_signatures(
    archive: Archive,
    keys: Sequence[SigningKey],
    *,
    since_version: int | None = None,
    pin: Path | None = None,
    every_snapshot: bool = False,
) -> tuple[SignatureReport, list[Problem]]:
    """Prove the catalog of an archive by these keys; what is wrong with it is returned, never raised.

    UsageError: the archive is in another layout, or the pin cannot be read.
    """
    if not isinstance(archive.catalog, Catalog):
        raise UsageError("only an archive in our own layout is signed", object_name=archive.url)
    path = pin or default_pin(archive.url)
    known = read_pin(path)
    check = _Check(archive, archive.catalog.table, keys, since_version)
    check.compare_versions()
    check.compare_files()
    check.compare_snapshots(_all_or_newest(check.snapshots, every_snapshot=every_snapshot))
    check.compare_pin(known, path)
    newest = check.newest
    problem = None
    if not check.problems and newest is not None:
        seen = Pin(archive=newest.archive, version=newest.version, chain=newest.chain, seen_at_ms=now_ms())
        problem = _write_pin(path, seen)
    report = SignatureReport(
        keys=tuple(key.name for key in keys),
        signed_version=None if newest is None else newest.version,
        signed_by=check.signed_by,
        signed_at_ms=None if newest is None else newest.signed_at_ms,
        unsigned=tuple(check.unsigned),
        since_version=since_version,
        data_files=check.data_files,
        weak_slices=check.weak_slices,
        snapshots=check.snapshots_compared,
        snapshots_unproven=len(check.snapshots) - check.snapshots_compared,
        pin=str(path),
        pinned_version=None if known is None else known.version,
        pinned=not check.problems and newest is not None and problem is None,
        pin_problem=problem,
    )
    return report, check.problems


def _all_or_newest(paths: set[str], *, every_snapshot: bool) -> list[str]:
    # Their names begin with the time of the run.
    return sorted(paths) if every_snapshot else sorted(paths)[-_SNAPSHOTS_READ:]


@dataclass(slots=True)
class _Check:
    archive: Archive
    table: Table
    keys: Sequence[SigningKey]
    since_version: int | None
    problems: list[Problem] = field(default_factory=list)
    newest: Statement | None = None
    """The statement of the newest version that an accepted key has signed."""
    signed_by: str | None = None
    unsigned: list[tuple[int, int]] = field(default_factory=list)
    data_files: int = 0
    weak_slices: int = 0
    snapshots: set[str] = field(default_factory=set)
    snapshots_compared: int = 0

    @property
    def storage(self) -> Storage:
        return self.archive.storage

    def _complain(
        self, kind: ProblemKind, message: str, object_name: str | None = None, hint: str = _BRING_BACK
    ) -> None:
        where = self.archive.url if object_name is None else self.storage.name_of(object_name)
        self.problems.append(Problem(kind=kind, message=message, object_name=where, hint=hint))

    def compare_versions(self) -> None:
        """Find the newest signed version, and the versions that nobody has signed."""
        version = self.table.log.version
        first = min(int(name[:20]) for name in self.table.log.files)
        entries = read_entries(self.storage, self.table, first)
        before: Statement | None = None
        for number in sorted(entries):
            found = statement_in(entries[number], number)
            signer = None if found is None else found.signer(self.keys)
            if found is None or signer is None or found.statement.archive != self.table.table_id:
                continue
            statement = found.statement
            if before is not None and not _follows(statement, before):
                message = f"version {number} was signed, but not as one that continues what is before it now"
                self._complain(ProblemKind.EXCHANGED, message, log_path(entry_name(number)))
            before, self.signed_by = statement, signer.name
        self.newest = before
        ranges = [] if before is None else list(before.unsigned)
        tail = 0 if before is None else before.version + 1
        if tail <= version:
            ranges.append((tail, version))
        self.unsigned = ranges
        bound = self.since_version or 0
        if bound > version:
            message = f"the archive is at version {version}: below version {bound} nothing is proven"
            self._complain(ProblemKind.UNSIGNED, message, hint="give a version that the archive has reached")
        for first, last in ranges:
            if last >= bound:
                message = f"{_versions(max(first, bound), last)} not signed by any of the given keys"
                hint = (
                    "a writer without --signing-key has committed, or somebody who should not; if you know what it "
                    f"was, accept it: --since-version {last + 1}"
                )
                self._complain(ProblemKind.UNSIGNED, message, LOG_FOLDER, hint)

    def compare_files(self) -> None:
        """Compare every data file with its signed digest, and gather what rows say of objects."""
        signed = self.newest if self.newest is not None and self.newest.version == self.table.log.version else None
        if signed is not None and not describes(signed, self.table):
            message = f"the data files of version {signed.version} are not those that were signed"
            self._complain(ProblemKind.EXCHANGED, message, LOG_FOLDER)
        digests: Mapping[str, str] = {} if signed is None else signed.digests
        with ThreadPoolExecutor(_READERS) as pool:
            for file, problem, rows in pool.map(lambda file: _read(self.storage, file, digests), self.table.files):
                if problem is not None:
                    self._complain(problem[0], problem[1], f"{TABLE_FOLDER}/{file.path}")
                    continue
                self.data_files += 1
                data = rows.filter(pc.is_in(rows["kind"], value_set=_HOLDERS))
                strong = pc.sum(pc.starts_with(data["digest"], f"{STRONG}:")).as_py() or 0
                self.weak_slices += data.num_rows - data["digest"].null_count - strong
                runs = rows.filter(pc.equal(rows["kind"], Kind.RUN))["path"]
                self.snapshots |= set(pc.drop_null(runs).to_pylist())
        if self.weak_slices and self.since_version is None:
            message = (
                f"{counted(self.weak_slices, 'slice')} have only a checksum, which a forger can keep: they were "
                "written without --signing-key"
            )
            hint = "accept what was written before the key: --since-version with the first signed version"
            self._complain(ProblemKind.UNSIGNED, message, hint=hint)

    def compare_snapshots(self, paths: Sequence[str]) -> None:
        """Compare the snapshots with the digests in their names, which are in signed rows."""
        named = [path for path in paths if digest_in(path) is not None]
        with ThreadPoolExecutor(_READERS) as pool:
            for path, digest in zip(named, pool.map(lambda path: _digest(self.storage, path), named), strict=True):
                if digest == digest_in(path):
                    self.snapshots_compared += 1
                elif digest is not None:
                    # The quick check tells of a missing one.
                    self._complain(ProblemKind.EXCHANGED, "this snapshot is not the one that was signed", path)

    def compare_pin(self, pin: Pin | None, path: Path) -> None:
        """Follow the chain from the version that was seen before to the newest one."""
        if pin is None:
            return
        seen = f"version {pin.version} was seen on {human_time(pin.seen_at_ms)} (pinned in {path})"
        version, newest = self.table.log.version, self.newest
        if pin.archive != self.table.table_id:
            self._complain(
                ProblemKind.ROLLED_BACK, f"this is another archive, or its catalog is a new one: {seen}", hint=_MOVED
            )
        elif version < pin.version:
            message = f"rolled back: the archive is at version {version}, but {seen}"
            self._complain(ProblemKind.ROLLED_BACK, message)
        elif newest is None or newest.version < pin.version:
            message = f"version {pin.version} was signed, and is not any more: {seen}"
            self._complain(ProblemKind.ROLLED_BACK, message)
        elif _follow(pin, self._links(pin.version), newest.version) != newest.chain:
            message = (
                f"version {newest.version} does not continue the version that was seen: the archive was rolled back "
                f"and went on from an older version, or digests of cleaned up entries are lost; {seen}"
            )
            self._complain(ProblemKind.ROLLED_BACK, message, hint=f"{_BRING_BACK}; {_MOVED}")

    def _links(self, after: int) -> dict[int, str]:
        entries = read_entries(self.storage, self.table, after + 1)
        found = {number: statement_in(entry, number) for number, entry in entries.items()}
        return {
            **read_links(self.storage, after),
            **{number: signed.statement.entry for number, signed in found.items() if signed is not None},
        }


_HOLDERS: Final = pa.array([str(kind) for kind in (Kind.DATA, Kind.REPLACED, Kind.BUILDING)], pa.string())


def _follows(statement: Statement, before: Statement) -> bool:
    return statement.previous == before.version and statement.chain == linked(before.chain, statement.entry)


def _follow(pin: Pin, links: Mapping[int, str], version: int) -> str:
    """The chain of a version, from that of the pin on."""
    chain = pin.chain
    for number in sorted(links):
        chain = linked(chain, links[number]) if number <= version else chain
    return chain


def _versions(first: int, last: int) -> str:
    return f"version {first} is" if first == last else f"versions {first} to {last} are"


def _read(
    storage: Storage, file: DataFile, digests: Mapping[str, str]
) -> tuple[DataFile, tuple[ProblemKind, str] | None, pa.Table]:
    """Some columns of a data file, or what is wrong with it."""
    try:
        data = storage.get(f"{TABLE_FOLDER}/{file.path}", size=file.bytes)
    except ObjectNotFoundError:
        return file, (ProblemKind.MISSING, "this data file of the catalog is missing"), None
    except TruncatedDataError as error:
        return file, (ProblemKind.EXCHANGED, f"this data file is not the one that was signed: {error.message}"), None
    expected = digest_of(file.path) or digests.get(file.path)
    if expected is None:
        return file, (ProblemKind.UNSIGNED, "no signature covers this data file of the catalog"), None
    if hashlib.sha256(data).hexdigest() != expected:
        return file, (ProblemKind.EXCHANGED, "this data file is not the one that was signed: its SHA-256 differs"), None
    columns = ["kind", "digest", "path"]
    return file, None, pq.read_table(pa.BufferReader(pa.py_buffer(data)), columns=columns)


def _digest(storage: Storage, path: str) -> str | None:
    with suppress(ObjectNotFoundError):
        return hashlib.sha256(storage.get(path)).hexdigest()
    return None


# The pin


def read_pin(path: Path) -> Pin | None:
    """The pin in a file; None if there is no file. UsageError: it cannot be read, which proves nothing."""
    try:
        with opened(path, create=False) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            return _pin_of(strict_json.parse(file.read(), unique=True))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"the pin of the archive cannot be read: {error}",
            object_name=str(path),
            hint="without it a rollback does not show; find out what has happened to the file, or give another --pin",
        ) from error


def _pin_of(found: Any) -> Pin:  # noqa: ANN401 - JSON of anybody
    if found[_PIN_FIELD] != _PIN_FORMAT or type(found["version"]) is not int:
        raise ValueError("it is not a pin of this release")
    bytes.fromhex(found["chain"])
    return Pin(archive=found["archive"], version=found["version"], chain=found["chain"], seen_at_ms=found["seen_at"])


def _write_pin(path: Path, pin: Pin) -> str | None:
    """Replace the pin, durably; why it could not be, if so."""
    document = {
        _PIN_FIELD: _PIN_FORMAT,
        "archive": pin.archive,
        "version": pin.version,
        "chain": pin.chain,
        "seen_at": pin.seen_at_ms,
    }
    new = path.with_name(f".{path.name}.new")
    try:
        make_private(path.parent)
        with opened(new, create=True) as descriptor:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(document).encode() + b"\n")
            os.fsync(descriptor)
        new.replace(path)
    except (OSError, MaxbrodError) as error:
        return str(error)
    return None


def with_signature(
    report: CheckReport, signature: SignatureReport | None, problems: Sequence[Problem], *, kept_max: int
) -> CheckReport:
    """The report of a check with what its signatures prove, and the problems of both."""
    counts = Counter(report.problem_counts) + Counter(problem.kind for problem in problems)
    kept = (*problems, *report.problems)[:kept_max]
    return replace(report, signature=signature, problems=kept, problem_counts=dict(counts))


def signature_lines(report: SignatureReport) -> Iterator[str]:
    """The report in words: what is proven, and what is not."""
    if report.signed_version is None:
        yield f"no version of the catalog is signed by {_keys(report.keys)}"
        return
    yield (
        f"signed: version {report.signed_version} by key {report.signed_by} on {human_time(report.signed_at_ms)}; "
        f"{counted(report.data_files, 'data file')} of the catalog and {counted(report.snapshots, 'snapshot')} "
        "are those that were signed"
    )
    if report.pinned_version is None and report.pinned:
        yield f"pinned for the first time, in {report.pin}: a rollback before this check would not show"
    elif report.pinned:
        yield f"it continues version {report.pinned_version}, which was pinned in {report.pin}"
    if report.pin_problem is not None:
        yield f"not pinned, so that a later rollback does not show: {report.pin_problem}"
    if report.since_version is not None and report.unsigned:
        yield f"not proven: unsigned versions below {report.since_version}, which were accepted"
    if report.weak_slices:
        yield f"not proven: {counted(report.weak_slices, 'slice')}, which have only a checksum"
    if report.snapshots_unproven:
        yield f"not proven: {counted(report.snapshots_unproven, 'snapshot')}, without a digest or not read"
    yield "not signed: holds, proofs, the ledger and schemas; objects are proven where --deep reads them"


def _keys(names: Sequence[str]) -> str:
    return f"key {names[0]}" if len(names) == 1 else f"any of the keys {', '.join(names)}"

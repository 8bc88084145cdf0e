"""Signed commits: what a writer with a key states of each version of the catalog, and how statements are chained.

A *statement* is kept in the commit information of its log entry, where Delta's readers ignore it, so that it becomes
visible with the commit and in no other way. It covers the entry's bytes and the data files of the whole version, each
with its SHA-256: so it holds when the entries before it have been cleaned up. Rows hold the digests of objects.

The *chain* is a digest over the entries of all signed versions in their order. Before entries are cleaned up, their
digests are kept as *links*, in `catalog/signatures/`. Whoever remembers the chain of a version can compute it for the
newest one: an archive that was rolled back and continued has another chain.

A writer vouches for nothing that others did: it carries on which versions nobody has signed. It refuses to go on from
data files that are not those of the signed version before. Which keys a reader trusts is not decided here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from maxbrod import strict_json
from maxbrod.catalog.codec import DataFile, Table
from maxbrod.catalog.files import digest_of
from maxbrod.catalog.log import LOG_FOLDER, TABLE_FOLDER, entry_name, log_path
from maxbrod.errors import CorruptDataError, ObjectExistsError, ObjectNotFoundError, UsageError
from maxbrod.model import now_ms
from maxbrod.storage.interface import Storage

if TYPE_CHECKING:
    from maxbrod.config import SigningConfig
    from maxbrod.signature import SigningKey

LINKS: Final = "catalog/signatures"
"""The folder of the links of entries that have been cleaned up."""
FORMAT_FIELD: Final = "maxbrod.catalog"
_FORMAT: Final = 1
_LINKS_FIELD: Final = "maxbrod.links"
_STATEMENT: Final = "maxbrod.signed"
_SIGNATURE: Final = "maxbrod.signature"
_MARK: Final = re.compile(
    rb',"maxbrod\.signed":"(?P<text>[A-Za-z0-9+/=]+)","maxbrod\.signature":"(?P<key>[0-9a-f]{16}):(?P<value>[0-9a-f]{128})"'
)
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_LINK_NAME: Final = re.compile(rf"{LINKS}/(\d{{20}})-(\d{{20}})\.json")
_NO_CHAIN: Final = "0" * 64
_RANGES_MAX: Final = 64
"""The ranges of unsigned versions that a statement lists. Beyond it the oldest ones are joined."""
_LOOK_BACK_MAX: Final = 4096
_READERS: Final = 8
_TAMPERED: Final = (
    "somebody without the key has changed the catalog: nothing is committed on top of it. 'maxbrod check --signature' "
    "tells what is not as it was signed; bring the folder 'catalog' back from a copy or from older object versions"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a key has signed of one version."""

    archive: str
    """The id of the catalog's table: a version of another archive does not pass for one of this."""
    version: int
    entry: str
    """The SHA-256 of the log entry without its statement."""
    previous: int | None
    """The signed version before it; None: none is known."""
    chain: str
    files: str
    """The digest of the list of data files: see `files_digest`."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of those data files that do not have it in their names: older releases wrote them."""
    ledger: int
    fence: int
    unsigned: tuple[tuple[int, int], ...] = ()
    """The first and last versions of ranges that no trusted key has signed."""
    signed_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedStatement:
    """A statement as it is found in an entry. Whether its signature holds must be asked."""

    statement: Statement
    text: bytes
    """The bytes that are signed."""
    key: str
    """The name of the key that claims to have signed it."""
    value: bytes

    def signer(self, keys: Iterable[SigningKey]) -> SigningKey | None:
        """The first of these keys that has signed it."""
        return next((key for key in keys if key.name == self.key and key.has_signed(self.text, self.value)), None)


def is_signed(entry: bytes) -> bool:
    """True if the entry claims to be signed."""
    return _MARK.search(entry) is not None


def statement_in(entry: bytes, version: int) -> SignedStatement | None:
    """The statement in an entry of this version, if it is about this very entry; None if there is none."""
    found = list(_MARK.finditer(entry))
    if len(found) != 1:
        return None
    try:
        text = base64.b64decode(found[0]["text"], validate=True)
        statement = _decode(strict_json.parse(text, unique=True))
    except (ValueError, TypeError, KeyError):
        return None
    if statement.version != version or statement.entry != entry_digest(entry):
        return None
    return SignedStatement(
        statement=statement, text=text, key=found[0]["key"].decode(), value=bytes.fromhex(found[0]["value"].decode())
    )


def entry_digest(entry: bytes) -> str:
    """The SHA-256 of an entry without its statement."""
    return hashlib.sha256(_MARK.sub(b"", entry)).hexdigest()


def linked(chain: str | None, entry: str) -> str:
    """The chain after a signed entry. Before the first there is none."""
    return hashlib.sha256(bytes.fromhex(chain or _NO_CHAIN) + bytes.fromhex(entry)).hexdigest()


def files_digest(files: Iterable[DataFile], digests: Mapping[str, str]) -> str | None:
    """The SHA-256 of a line for each data file, sorted: name, size and SHA-256. None: the digest of one is unknown."""
    lines = []
    for file in sorted(files, key=lambda file: file.path):
        digest = digest_of(file.path) or digests.get(file.path)
        if digest is None:
            return None
        lines.append(f"{file.path} {file.bytes} {digest}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def describes(statement: Statement, table: Table) -> bool:
    """True if the table has exactly the data files, ledger and fence of the statement."""
    return (
        statement.archive == table.table_id
        and statement.version == table.log.version
        and statement.files == files_digest(table.files, statement.digests)
        and (statement.ledger, statement.fence) == (table.ledger, table.fence)
    )


def _encode(statement: Statement) -> dict[str, Any]:
    return {
        FORMAT_FIELD: _FORMAT,
        "archive": statement.archive,
        "version": statement.version,
        "entry": statement.entry,
        "previous": statement.previous,
        "chain": statement.chain,
        "files": statement.files,
        "digests": dict(statement.digests),
        "ledger": statement.ledger,
        "fence": statement.fence,
        "unsigned": [list(pair) for pair in statement.unsigned],
        "signed_at": statement.signed_at_ms,
    }


def _decode(found: Any) -> Statement:  # noqa: ANN401 - JSON of anybody
    """ValueError, TypeError and KeyError: this is not a statement of this format."""
    if found[FORMAT_FIELD] != _FORMAT:
        raise ValueError("its format is unknown")
    numbers = [found[name] for name in ("version", "ledger", "fence", "signed_at")]
    ranges = tuple((first, last) for first, last in found["unsigned"])
    hashes = (found["entry"], found["chain"], found["files"], *found["digests"].values())
    if not all(type(number) is int for number in (*numbers, *(edge for pair in ranges for edge in pair))):
        raise ValueError("a number is none")
    if found["previous"] is not None and type(found["previous"]) is not int:
        raise ValueError("a number is none")
    if not all(isinstance(text, str) and _HEX.fullmatch(text) for text in hashes):
        raise ValueError("a digest is none")
    return Statement(
        archive=str(found["archive"]),
        version=found["version"],
        entry=found["entry"],
        previous=found["previous"],
        chain=found["chain"],
        files=found["files"],
        digests=dict(found["digests"]),
        ledger=found["ledger"],
        fence=found["fence"],
        unsigned=ranges,
        signed_at_ms=found["signed_at"],
    )


class CatalogSigner:
    """Signs the commits of one process."""

    def __init__(self, config: SigningConfig) -> None:
        """UsageError: a key cannot be read, or is not one that can sign."""
        from maxbrod.signature import read_key  # noqa: PLC0415 - cryptography: only for those who sign

        if config.key_file is None:
            raise UsageError("no key is given that signs the catalog", hint="give --signing-key FILE")
        self._key: Final = read_key(config.key_file)
        if self._key.private is None:
            raise UsageError(
                "this key cannot sign a catalog",
                object_name=str(config.key_file),
                hint="give an Ed25519 private key in PEM form: whoever verifies must not be able to sign",
            )
        self._trusted: Final = (self._key, *map(read_key, config.trusted_keys))

    def sign(self, storage: Storage, before: Table | None, entry: bytes, after: Table) -> tuple[bytes, Table]:
        """The entry with its statement, and the table after it. `before` is the version before; None: there is none.

        CorruptDataError: the version before is not what was signed.
        """
        last, unsigned = (None, ()) if before is None else self._last_signed(storage, before)
        return self._signed(storage, entry, after, last, unsigned)

    def sign_anew(self, storage: Storage, entry: bytes, after: Table) -> tuple[bytes, Table]:
        """The same for a catalog that was made again from objects: for the versions before it nobody vouches."""
        return self._signed(storage, entry, after, None, ((0, after.log.version - 1),))

    def _signed(
        self,
        storage: Storage,
        entry: bytes,
        after: Table,
        last: Statement | None,
        unsigned: Sequence[tuple[int, int]],
    ) -> tuple[bytes, Table]:
        version, digest = after.log.version, entry_digest(entry)
        digests = self._digests(storage, after.files, {} if last is None else last.digests)
        files = files_digest(after.files, digests)
        if files is None:
            raise AssertionError("the digest of a data file is unknown")
        statement = Statement(
            archive=after.table_id,
            version=version,
            entry=digest,
            previous=None if last is None else last.version,
            chain=linked(None if last is None else last.chain, digest),
            files=files,
            digests=digests,
            ledger=after.ledger,
            fence=after.fence,
            unsigned=_joined(unsigned),
            signed_at_ms=now_ms(),
        )
        text = json.dumps(_encode(statement), sort_keys=True, separators=(",", ":")).encode()
        signed = _with_mark(entry, text, self._key)
        files_of_log = {**after.log.files, entry_name(version): signed}
        return signed, replace(after, log=replace(after.log, files=files_of_log))

    def _last_signed(self, storage: Storage, table: Table) -> tuple[Statement | None, tuple[tuple[int, int], ...]]:
        """The newest statement that a trusted key has signed, and the ranges of unsigned versions up to the table."""
        version = table.log.version
        for number, entry in _back_from(storage, table):
            found = statement_in(entry, number)
            if found is None or found.signer(self._trusted) is None or found.statement.archive != table.table_id:
                continue
            statement = found.statement
            if number == version and not describes(statement, table):
                raise CorruptDataError(
                    f"the data files of version {version} of the catalog are not those that were signed",
                    operation="sign the catalog",
                    object_name=storage.name_of(LOG_FOLDER),
                    hint=_TAMPERED,
                )
            newer = ((number + 1, version),) if number < version else ()
            return statement, (*statement.unsigned, *newer)
        return None, ((0, version),)

    def _digests(self, storage: Storage, files: Sequence[DataFile], known: Mapping[str, str]) -> dict[str, str]:
        """The digests of files that have none in their names. The first signed commit reads them, and no other."""
        unnamed = [file.path for file in files if digest_of(file.path) is None]
        return {
            path: known.get(path) or hashlib.sha256(storage.get(f"{TABLE_FOLDER}/{path}")).hexdigest()
            for path in unnamed
        }


def _with_mark(entry: bytes, text: bytes, key: SigningKey) -> bytes:
    """The entry with a statement at the end of its commit information."""
    mark = f',"{_STATEMENT}":"{base64.b64encode(text).decode()}","{_SIGNATURE}":"{key.name}:{key.sign(text).hex()}"'
    lines = entry.split(b"\n")
    at = next(
        number for number, line in enumerate(lines) if line.startswith(b'{"commitInfo":') and line.endswith(b"}}")
    )
    lines[at] = lines[at][:-2] + mark.encode() + b"}}"
    return b"\n".join(lines)


def _joined(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The ranges in order, adjacent ones as one, and the oldest ones together if there are too many."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    extra = max(0, len(found) - _RANGES_MAX)
    return ((found[0][0], found[extra][1]), *found[extra + 1 :]) if extra else tuple(found)


def _back_from(storage: Storage, table: Table) -> Iterator[tuple[int, bytes]]:
    """The entries of a table's log, the newest first, as far back as they have not been cleaned up."""
    for number in range(table.log.version, max(-1, table.log.version - _LOOK_BACK_MAX), -1):
        known = table.log.files.get(entry_name(number))
        try:
            yield number, known if known is not None else bytes(storage.get(log_path(entry_name(number))))
        except ObjectNotFoundError:
            return


def signer_of(storage: Storage) -> CatalogSigner | None:
    """The signer of an archive's commits; None if they are not signed. UsageError: its key cannot be used."""
    return None if storage.signing is None else CatalogSigner(storage.signing)


# Links


def keep_links(storage: Storage, paths: Sequence[str]) -> None:
    """Keep the digests of signed entries that are about to be deleted, so that the chain can still be computed."""
    versions = sorted(
        int(name.removesuffix(".json"))
        for path in paths
        if (name := path.removeprefix(f"{LOG_FOLDER}/")).removesuffix(".json").isdecimal() and name.endswith(".json")
    )
    with ThreadPoolExecutor(_READERS) as pool:
        entries = list(pool.map(partial(_entry_if_there, storage), versions))
    links = [
        [version, entry_digest(entry)]
        for version, entry in zip(versions, entries, strict=True)
        if entry is not None and is_signed(entry)
    ]
    if links:
        name = f"{LINKS}/{links[0][0]:020}-{links[-1][0]:020}.json"
        # Another writer that cleans up has put the same.
        with suppress(ObjectExistsError):
            storage.put(name, json.dumps({_LINKS_FIELD: _FORMAT, "links": links}).encode())


def read_links(storage: Storage, after: int) -> dict[int, str]:
    """The digests of signed entries after a version that were kept when the entries were cleaned up."""
    found: dict[int, str] = {}
    for info in sorted(storage.list(LINKS), key=lambda info: info.path):
        matched = _LINK_NAME.fullmatch(info.path)
        if matched is None or int(matched[2]) <= after:
            continue
        with suppress(ValueError, TypeError, KeyError):
            links = strict_json.parse(bytes(storage.get(info.path)))["links"]
            found.update({int(version): str(entry) for version, entry in links if _HEX.fullmatch(str(entry))})
    return {version: entry for version, entry in found.items() if version > after}


def read_entries(storage: Storage, table: Table, first: int) -> dict[int, bytes]:
    """The entries of the log from a version on up to the table's, as far as they have not been cleaned up."""
    wanted = range(max(0, first), table.log.version + 1)
    listed = {info.path for info in storage.list(LOG_FOLDER)}
    there = [number for number in wanted if log_path(entry_name(number)) in listed]
    with ThreadPoolExecutor(_READERS) as pool:
        entries = pool.map(partial(_entry_if_there, storage), there)
        return {number: entry for number, entry in zip(there, entries, strict=True) if entry is not None}


def _entry_if_there(storage: Storage, version: int) -> bytes | None:
    with suppress(ObjectNotFoundError):
        return bytes(storage.get(log_path(entry_name(version))))
    return None

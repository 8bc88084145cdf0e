"""Changes the keys of an archive. Each change is one document that is put, or not: nothing can be half done.

No data is rewritten. A rotation or a removal begins a new epoch: what is written from then on is sealed for keys that a
removed holder never had. Writers that are running take them within a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.empty_places import no_archive, refuse_foreign_objects
from maxbrod.errors import RefusedError, UsageError
from maxbrod.key.report import CreatedKey, KeyChange, KeysReport, KnownKey
from maxbrod.private_files import create_private
from maxbrod.signature import create_signing_key
from maxbrod.storage.sealing.identity import (
    create_key_files,
    passphrase_in,
    read_key_file,
    recipient_for_command,
    recipient_for_key,
    recipient_for_kms,
    recipient_for_passphrase,
)
from maxbrod.storage.sealing.rings import (
    OpenRing,
    Recipient,
    Ring,
    add_recipient,
    create_ring,
    decode_ring,
    remove_recipient,
    rotate,
)
from maxbrod.storage.sealing.sealed import find_ring, open_ring, put_ring, read_rings, without_key
from maxbrod.storage.stores import open_plain

if TYPE_CHECKING:
    from maxbrod.config import Config, EncryptionConfig
    from maxbrod.key.options import KeyOptions
    from maxbrod.storage.interface import Storage

_ATTEMPTS: Final = 5


def create_key(file: Path, options: KeyOptions) -> CreatedKey:
    if options.signing:
        create_signing_key(file)
        return CreatedKey(file=str(file), public_file=f"{file}.pub")
    return CreatedKey(**create_key_files(file, options.label))


def list_keys(config: Config) -> KeysReport:
    """Who may open the archive. This is told without a key, too."""
    storage, keys = open_plain(config.archive_url, config.storage), config.storage.encryption
    if not keys.given and find_ring(storage) is not None:
        return _report(storage, None)
    return _report(storage, _opened(storage, keys))


def add_key(config: Config, options: KeyOptions) -> KeysReport:
    """Add a recipient. In an empty place, this begins an encrypted archive, which this recipient alone opens."""
    storage = open_plain(config.archive_url, config.storage)
    recipient, public = _recipient(config.storage.encryption, options)
    if find_ring(storage) is None:
        _refuse_plain(storage)
        put_ring(storage, create_ring({recipient.id: (recipient, public)}))
        return _report(storage, None)
    return _change(storage, config, lambda opened: add_recipient(opened, recipient, public))


def remove_key(config: Config, name: str) -> KeysReport:
    storage = open_plain(config.archive_url, config.storage)
    return _change(storage, config, lambda opened: remove_recipient(opened, name))


def rotate_keys(config: Config) -> KeysReport:
    return _change(open_plain(config.archive_url, config.storage), config, rotate)


def export_keys(config: Config, file: Path) -> KeysReport:
    """Copy the newest document to a file. It opens nothing by itself, and without it no key opens the archive."""
    storage = open_plain(config.archive_url, config.storage)
    opened = _opened(storage, config.storage.encryption)
    try:
        create_private(file, bytes(storage.get(opened.ring.path)))
    except OSError as error:
        raise UsageError(f"the file cannot be created: {error.strerror}", object_name=str(file)) from None
    return _report(storage, opened)


def import_keys(config: Config, file: Path) -> KeysReport:
    """Put an exported document back where the archive has lost it. RefusedError: it has keys that are as new."""
    storage = open_plain(config.archive_url, config.storage)
    try:
        ring = decode_ring(file.read_bytes(), name=str(file))
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", object_name=str(file)) from None
    opened = open_ring(ring, config.storage.encryption, name=str(file))
    found = find_ring(storage)
    if found is not None and (found.ring != ring.ring or found.number >= ring.number):
        raise RefusedError(
            "the archive has keys of its own, as new as these or newer",
            object_name=storage.name_of(found.path),
            hint="see 'maxbrod key list'",
        )
    put_ring(storage, ring)
    return _report(storage, opened)


def _change(storage: Storage, config: Config, change: Callable[[OpenRing], Ring]) -> KeysReport:
    """Put the next document. If another change comes first, this one is made again onto it."""
    for attempt in range(_ATTEMPTS):
        ring = change(_opened(storage, config.storage.encryption))
        try:
            put_ring(storage, ring)
            break
        except RefusedError:
            if attempt == _ATTEMPTS - 1:
                raise
    return _report(storage, open_ring(ring, config.storage.encryption, name=storage.name_of(ring.path)))


def _opened(storage: Storage, keys: EncryptionConfig) -> OpenRing:
    ring = find_ring(storage)
    if ring is None:
        _refuse_plain(storage)
        raise no_archive(storage)
    if not keys.given:
        raise without_key(storage)
    return open_ring(ring, keys, name=storage.name_of(ring.path))


def _refuse_plain(storage: Storage) -> None:
    """RefusedError: an archive that is not encrypted cannot become so in place."""
    if Catalog.find(storage) is not None:
        raise RefusedError(
            "this archive is not encrypted, and what it holds stays as it is",
            object_name=storage.url,
            hint="'maxbrod copy' makes an encrypted copy of it",
        )
    refuse_foreign_objects(storage)


def _recipient(keys: EncryptionConfig, options: KeyOptions) -> tuple[Recipient, bytes]:
    given = [options.public_key, options.passphrase_file, options.kms, options.command or None]
    if sum(choice is not None for choice in given) != 1:
        raise UsageError(
            "nothing, or more than one thing, says which key to add",
            hint="give one of --public-key FILE, --passphrase-file FILE, --kms KEY and --command",
        )
    if options.label is None:
        raise UsageError("the key has no label", hint="say whose it is, or what it is for: --label NAME")
    if options.public_key is not None:
        return recipient_for_key(read_key_file(options.public_key), options.label)
    if options.passphrase_file is not None:
        return recipient_for_passphrase(passphrase_in(options.passphrase_file), options.label)
    if options.kms is not None:
        return recipient_for_kms(keys.model_copy(update={"kms_key": options.kms}), options.label)
    if not keys.command:
        raise UsageError("no program is configured", hint="set storage.encryption.command in the configuration")
    return recipient_for_command(keys.command, options.label)


def _report(storage: Storage, opened: OpenRing | None) -> KeysReport:
    rings = read_rings(storage)
    ring = rings[-1]
    warnings: tuple[str, ...] = ()
    if len(ring.recipients) == 1:
        warnings = ("one key is all there is: if it is lost, so is the archive; add another with 'maxbrod key add'",)
    return KeysReport(
        archive=storage.url,
        keys=tuple(
            KnownKey(
                id=recipient.id,
                label=recipient.label,
                kind=recipient.kind,
                added_at_ms=recipient.added_at_ms,
                at_hand=opened is not None and opened.by.id == recipient.id,
            )
            for recipient in ring.recipients
        ),
        epochs=len(ring.epochs),
        epoch_since_ms=ring.epoch.created_at_ms,
        reads_records=opened is not None and opened.reads_records,
        changes=tuple(
            KeyChange(number=found.number, at_ms=found.at_ms, change=found.change, label=found.changed)
            for found in rings
        ),
        warnings=warnings,
    )

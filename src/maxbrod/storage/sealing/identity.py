"""Who opens a ring: keys as text and in files, passphrases, Amazon's KMS, and any program that wraps and unwraps.

Each of them comes down to a key pair (X25519). A passphrase becomes one by Argon2id. KMS and programs keep one that
they have wrapped, and whose wrapped form is in the ring. So a ring can be changed for all recipients by one of them,
who needs nobody else's secret.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from maxbrod.config import EncryptionConfig
from maxbrod.errors import (
    AccessDeniedError,
    CorruptDataError,
    EnvironmentMissingError,
    MaxbrodError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from maxbrod.model import now_ms
from maxbrod.private_files import create_pair, refuse_readable_key
from maxbrod.storage.sealing.rings import (
    OpenRing,
    Recipient,
    RecipientKind,
    Ring,
    id_of,
    open_with_private,
    open_with_public,
)

PRIVATE: Final = "maxbrod-private-1-"
PUBLIC: Final = "maxbrod-public-1-"
_LABEL: Final = "# label: "
_CHECK_BYTES: Final = 4
_KEY_BYTES: Final = 32
_SALT_BYTES: Final = 16
_ARGON: Final = {"iterations": 3, "lanes": 4, "memory_kib": 64 * 1024}
_ARGON_MAX: Final = {"iterations": 32, "lanes": 64, "memory_kib": 2 * 1024 * 1024}
_COMMAND_S: Final = 60
_WRAPPED_MAX: Final = 64 * 1024
_PASSPHRASE_MIN: Final = 12
_HOW: Final = "give --archive-key, $MAXBROD_KEY, $MAXBROD_PASSPHRASE, or the section storage.encryption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A key pair, or its public half alone."""

    public: bytes
    private: X25519PrivateKey | None = None
    label: str | None = field(default=None, compare=False)

    @property
    def id(self) -> str:
        return id_of(self.public)

    @classmethod
    def of(cls, private: X25519PrivateKey) -> Identity:
        return cls(public=private.public_key().public_bytes_raw(), private=private)

    @property
    def public_text(self) -> str:
        return _written(PUBLIC, self.public)

    @property
    def private_text(self) -> str:
        """UsageError: only the public half is known."""
        if self.private is None:
            raise UsageError("this is a public key", object_name=self.id)
        return _written(PRIVATE, self.private.private_bytes_raw())


def new_identity() -> Identity:
    return Identity.of(X25519PrivateKey.generate())


def _written(start: str, key: bytes) -> str:
    return start + base64.b32encode(key + _check(start, key)).decode().rstrip("=").lower()


def _check(start: str, key: bytes) -> bytes:
    return hashlib.sha256(start.encode() + key).digest()[:_CHECK_BYTES]


def parse_identity(text: str, *, name: str) -> Identity:
    """A key as text: the one line that is not empty and does not begin with `#`. UsageError: it is none.

    The error names where the text came from, and never quotes it.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) == 1:
        for start in (PRIVATE, PUBLIC):
            if lines[0].lower().startswith(start):
                key = _read(start, lines[0].lower().removeprefix(start))
                if key is not None and start == PRIVATE:
                    return Identity.of(X25519PrivateKey.from_private_bytes(key))
                if key is not None:
                    return Identity(public=key)
    raise UsageError(
        "this is not a key, or a letter of it is wrong",
        object_name=name,
        hint=f"a key begins with {PRIVATE} or {PUBLIC}; 'maxbrod key create FILE' makes one",
    )


def _read(start: str, text: str) -> bytes | None:
    try:
        data = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
    except ValueError:
        return None
    key = data[:_KEY_BYTES]
    # Written again, because the last letter has bits that count for nothing.
    return key if len(key) == _KEY_BYTES and _written(start, key) == start + text else None


def read_key_file(path: Path) -> Identity:
    """RefusedError: others may read a private key."""
    text, found = _text_of(path, "key")
    label = next((line.removeprefix(_LABEL).strip() for line in text.splitlines() if line.startswith(_LABEL)), None)
    identity = replace(parse_identity(text, name=str(path)), label=label)
    if identity.private is not None:
        refuse_readable_key(path, found)
    return identity


def _text_of(path: Path, what: str) -> tuple[str, os.stat_result]:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_WRAPPED_MAX), os.fstat(file.fileno())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"the {what} cannot be read: {reason}", object_name=str(path)) from None


def create_key_files(path: Path, label: str | None) -> dict[str, str]:
    """Make a key pair: a private file, and beside it the public half."""
    identity = new_identity()
    about = "".join((f"{_LABEL}{label}\n" if label else "", f"# maxbrod key {identity.id}\n"))
    private = f"{about}# public key: {identity.public_text}\n{identity.private_text}\n"
    public_path = create_pair(path, private.encode(), f"{about}{identity.public_text}\n".encode())
    return {
        "id": identity.id,
        "public_key": identity.public_text,
        "file": str(path),
        "public_file": str(public_path),
    }


def identities_of(options: EncryptionConfig) -> list[Identity]:
    """The keys of the configuration that are given as such."""
    found = [parse_identity(text, name="storage.encryption.public_keys") for text in options.public_keys]
    if options.secret_key is not None:
        found.append(parse_identity(options.secret_key.get_secret_value(), name="storage.encryption.secret_key"))
    if options.key_file is not None:
        found.append(read_key_file(options.key_file))
    return found


def passphrase_of(options: EncryptionConfig) -> bytes | None:
    if options.passphrase is not None:
        return options.passphrase.get_secret_value().encode()
    return None if options.passphrase_file is None else passphrase_in(options.passphrase_file)


def passphrase_in(path: Path) -> bytes:
    """The passphrase in a file, without the end of its line. RefusedError: others may read it."""
    text, found = _text_of(path, "passphrase")
    refuse_readable_key(path, found)
    return text.removesuffix("\n").encode()


def stretch(passphrase: bytes, means: dict[str, Any]) -> X25519PrivateKey:
    """The key pair of a passphrase. CorruptDataError: the ring's numbers would exhaust this machine."""
    try:
        numbers = {name: int(means[name]) for name in _ARGON}
        salt = bytes.fromhex(means["salt"])
        if len(salt) != _SALT_BYTES or any(not 0 < value <= _ARGON_MAX[name] for name, value in numbers.items()):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise CorruptDataError("the archive's keys name impossible settings of Argon2") from None
    argon = Argon2id(
        salt=salt,
        length=_KEY_BYTES,
        iterations=numbers["iterations"],
        lanes=numbers["lanes"],
        memory_cost=numbers["memory_kib"],
    )
    return X25519PrivateKey.from_private_bytes(argon.derive(passphrase))


def unlock(ring: Ring, options: EncryptionConfig, *, name: str) -> OpenRing:
    """Open a ring with what the configuration has. RefusedError: nothing of that opens it; it names what would."""
    best: OpenRing | None = None
    troubles: list[MaxbrodError] = []
    for opened in _attempts(ring, options, name, troubles):
        if opened is not None and (best is None or opened.reads_records):
            best = opened
        if best is not None and best.reads_records:
            return best
    if best is not None:
        return best
    if troubles:
        raise troubles[0]
    given = ", ".join(identity.id for identity in identities_of(options)) or "a passphrase, KMS or a program"
    raise RefusedError(
        f"none of the keys at hand ({given}) opens this archive",
        operation="open the archive's keys",
        object_name=name,
        hint=f"it opens with {ring.recipients_told()}",
    )


def locked(ring: Ring, name: str) -> RefusedError:
    """The error for an encrypted archive when no key is given."""
    return RefusedError(
        "this archive is encrypted, and no key is given",
        operation="open the archive",
        object_name=name,
        hint=f"it opens with {ring.recipients_told()}: {_HOW}",
    )


def _attempts(
    ring: Ring, options: EncryptionConfig, name: str, troubles: list[MaxbrodError]
) -> Iterator[OpenRing | None]:
    # A file or a passphrase is tried before a service is asked.
    for identity in identities_of(options):
        if identity.private is not None:
            yield open_with_private(ring, identity.private, name=name)
        else:
            yield open_with_public(ring, identity.public, name=name)
    passphrase = passphrase_of(options)
    for recipient in ring.recipients:
        try:
            private = _private_of(recipient, options, passphrase)
        except (UnavailableError, AccessDeniedError, EnvironmentMissingError, RefusedError) as error:
            troubles.append(error)
            continue
        if private is not None:
            yield open_with_private(ring, private, name=name)


def _private_of(recipient: Recipient, options: EncryptionConfig, passphrase: bytes | None) -> X25519PrivateKey | None:
    if recipient.kind is RecipientKind.PASSPHRASE and passphrase is not None:
        return stretch(passphrase, recipient.means)
    if recipient.kind is RecipientKind.KMS and options.kms_key is not None:
        from maxbrod.storage.sealing.kms import decrypt  # noqa: PLC0415 - needs an extra

        return _unwrapped(decrypt(options, _wrapped_in(recipient), recipient.label), recipient)
    if recipient.kind is RecipientKind.COMMAND and options.command:
        return _unwrapped(call(options.command, "unwrap", recipient.label, _wrapped_in(recipient)), recipient)
    return None


def _wrapped_in(recipient: Recipient) -> bytes:
    try:
        return base64.b64decode(str(recipient.means["wrapped"]), validate=True)
    except (KeyError, ValueError):
        raise CorruptDataError(f"the archive's keys lack what {recipient} has wrapped") from None


def _unwrapped(key: bytes, recipient: Recipient) -> X25519PrivateKey:
    if len(key) != _KEY_BYTES:
        raise RefusedError(f"what {recipient} unwraps has {len(key)} bytes, and a key has {_KEY_BYTES}")
    return X25519PrivateKey.from_private_bytes(key)


def call(command: tuple[str, ...], verb: str, label: str, data: bytes) -> bytes:
    """Have a program wrap or unwrap a key: standard input to standard output, with the verb and the label as arguments.

    The program comes from the configuration, never from an archive. Its output is never shown.
    """
    try:
        done = subprocess.run([*command, verb, label], input=data, capture_output=True, timeout=_COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        raise UnavailableError(
            f"the program did not {verb} the key in {_COMMAND_S} s", object_name=command[0]
        ) from None
    except OSError as error:
        raise EnvironmentMissingError(
            f"the program that wraps keys cannot be run: {error.strerror}", object_name=command[0]
        ) from None
    if done.returncode or not done.stdout or len(done.stdout) > _WRAPPED_MAX:
        raise RefusedError(
            f"the program did not {verb} the key: it ended with {done.returncode} and {len(done.stdout)} bytes",
            object_name=command[0],
            hint=f"try it: {command[0]} {verb} {label}",
        )
    return done.stdout


def recipient_for_key(identity: Identity, label: str) -> tuple[Recipient, bytes]:
    return _recipient(identity, label, RecipientKind.KEY, {}), identity.public


def recipient_for_passphrase(passphrase: bytes, label: str) -> tuple[Recipient, bytes]:
    """UsageError: it is too short."""
    if len(passphrase) < _PASSPHRASE_MIN:
        raise UsageError(
            f"the passphrase has fewer than {_PASSPHRASE_MIN} letters",
            hint="whoever has the archive can try as many as he likes: take several random words",
        )
    means = {"salt": os.urandom(_SALT_BYTES).hex(), **_ARGON}
    identity = Identity.of(stretch(passphrase, means))
    return _recipient(identity, label, RecipientKind.PASSPHRASE, means), identity.public


def recipient_for_kms(options: EncryptionConfig, label: str) -> tuple[Recipient, bytes]:
    from maxbrod.storage.sealing.kms import encrypt  # noqa: PLC0415 - needs an extra

    identity = new_identity()
    assert identity.private is not None  # noqa: S101 - just made
    wrapped = encrypt(options, identity.private.private_bytes_raw(), label)
    means = {"key": options.kms_key, "wrapped": base64.b64encode(wrapped).decode()}
    return _recipient(identity, label, RecipientKind.KMS, means), identity.public


def recipient_for_command(command: tuple[str, ...], label: str) -> tuple[Recipient, bytes]:
    """RefusedError: the program does not give back what it was given."""
    identity = new_identity()
    assert identity.private is not None  # noqa: S101 - just made
    key = identity.private.private_bytes_raw()
    wrapped = call(command, "wrap", label, key)
    if wrapped == key or call(command, "unwrap", label, wrapped) != key:
        raise RefusedError(
            "the program does not unwrap what it has wrapped, or does not wrap at all", object_name=command[0]
        )
    means = {"wrapped": base64.b64encode(wrapped).decode()}
    return _recipient(identity, label, RecipientKind.COMMAND, means), identity.public


def _recipient(identity: Identity, label: str, kind: RecipientKind, means: dict[str, Any]) -> Recipient:
    if not label or len(label) > 100 or not label.isprintable():
        raise UsageError("a key's label has up to 100 letters", object_name=label)
    return Recipient(id=identity.id, label=label, kind=kind, added_at_ms=now_ms(), means=means)


def recipients_of(options: EncryptionConfig) -> dict[str, tuple[Recipient, bytes]]:
    """For a new archive: everything that the configuration gives, each with a label that says what it is."""
    found = [
        recipient_for_key(identity, identity.label or f"key {identity.id[:8]}") for identity in identities_of(options)
    ]
    passphrase = passphrase_of(options)
    if passphrase is not None:
        found.append(recipient_for_passphrase(passphrase, "passphrase"))
    if options.kms_key is not None:
        found.append(recipient_for_kms(options, "kms"))
    if options.command:
        found.append(recipient_for_command(options.command, "command"))
    return {recipient.id: (recipient, public) for recipient, public in found}

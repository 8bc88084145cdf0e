"""The users of a mount: a private file of salted verifiers, from which no password can be read.

One line per user and mechanism, in Kafka's own terms for SCRAM (RFC 5802), separated by spaces:

    NAME MECHANISM ITERATIONS SALT STORED_KEY SERVER_KEY

The last three are base64. `python -m maxbrod.mount.users NAME` asks for a password and prints the lines. PLAIN logins
are checked against the same lines.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import hmac
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from maxbrod.errors import UsageError
from maxbrod.private_files import opened, refuse_readable_key

SCRAM_DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS: Final = 8192
_ITERATIONS_MIN: Final = 4096
_ITERATIONS_MAX: Final = 1_000_000
_SALT_BYTES: Final = 24
_FILE_BYTES_MAX: Final = 16 << 20
_FIELDS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramVerifier:
    """What a server keeps of a password."""

    mechanism: str
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of(
        cls, password: str, mechanism: str, *, iterations: int = ITERATIONS, salt: bytes | None = None
    ) -> ScramVerifier:
        digest, salt = SCRAM_DIGESTS[mechanism], salt or secrets.token_bytes(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        return cls(
            mechanism=mechanism,
            iterations=iterations,
            salt=salt,
            stored_key=hashlib.new(digest, client_key).digest(),
            server_key=hmac.digest(salted, b"Server Key", digest),
        )

    def accepts(self, password: str) -> bool:
        """Takes milliseconds, on purpose."""
        given = ScramVerifier.of(password, self.mechanism, iterations=self.iterations, salt=self.salt)
        return hmac.compare_digest(given.stored_key, self.stored_key)

    def line(self, name: str) -> str:
        keys = (base64.b64encode(value).decode() for value in (self.salt, self.stored_key, self.server_key))
        return " ".join((name, self.mechanism, str(self.iterations), *keys))


class Users:
    """Verifiers by name and mechanism."""

    def __init__(self, verifiers: Mapping[str, Mapping[str, ScramVerifier]]) -> None:
        self._verifiers = verifiers
        self._pepper = secrets.token_bytes(32)
        found = [verifier for known in verifiers.values() for verifier in known.values()]
        self._iterations = max((verifier.iterations for verifier in found), default=ITERATIONS)
        self.mechanisms = tuple(name for name in SCRAM_DIGESTS if any(each.mechanism == name for each in found))
        """The SCRAM mechanisms that somebody can use."""

    def verifier(self, name: str, mechanism: str) -> ScramVerifier:
        """That of a user; else one that nobody satisfies, because an answer must not tell who exists."""
        known = self._verifiers.get(name, {}).get(mechanism)
        return known or self._nobody(name, mechanism)

    def accepts(self, name: str, password: str) -> bool:
        known = self._verifiers.get(name, {})
        verifier = next(iter(known.values()), None) or self._nobody(name, next(iter(SCRAM_DIGESTS)))
        return verifier.accepts(password) and bool(known)

    def _nobody(self, name: str, mechanism: str) -> ScramVerifier:
        """The same salt for the same name, as a user would have."""
        salt = hmac.digest(self._pepper, f"{mechanism} {name}".encode(), "sha256")[:_SALT_BYTES]
        size = hashlib.new(SCRAM_DIGESTS[mechanism]).digest_size
        return ScramVerifier(
            mechanism=mechanism,
            iterations=self._iterations,
            salt=salt,
            stored_key=secrets.token_bytes(size),
            server_key=secrets.token_bytes(size),
        )


def read_users(path: Path) -> Users:
    """UsageError if it is no file of users; RefusedError if others may read it."""
    try:
        with opened(path, create=False) as descriptor:
            refuse_readable_key(path, os.fstat(descriptor))
            text = os.read(descriptor, _FILE_BYTES_MAX).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"the file of users cannot be read: {reason}", object_name=str(path)) from None
    found: dict[str, dict[str, ScramVerifier]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            name, verifier = _parsed(line, f"{path}, line {number}")
            found.setdefault(name, {})[verifier.mechanism] = verifier
    if not found:
        hint = "python -m maxbrod.mount.users NAME prints the lines of a user"
        raise UsageError("the file of users is empty, so nobody could log in", object_name=str(path), hint=hint)
    return Users(found)


def _parsed(line: str, place: str) -> tuple[str, ScramVerifier]:
    # No error shows the line: it is what an attacker would guess passwords with.
    fields = line.split()
    try:
        if len(fields) != _FIELDS:
            raise ValueError(f"it has {len(fields)} fields, not {_FIELDS}")
        name, mechanism, iterations = fields[0], fields[1], int(fields[2])
        if mechanism not in SCRAM_DIGESTS:
            raise ValueError(f"the mechanism must be one of {', '.join(SCRAM_DIGESTS)}")
        if not _ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
            raise ValueError(f"the iterations must be between {_ITERATIONS_MIN} and {_ITERATIONS_MAX}")
        salt, stored_key, server_key = (base64.b64decode(value, validate=True) for value in fields[3:])
        size = hashlib.new(SCRAM_DIGESTS[mechanism]).digest_size
        if {len(stored_key), len(server_key)} != {size} or not salt:
            raise ValueError(f"the keys of {mechanism} have {size} bytes")
    except ValueError as error:
        raise UsageError(
            f"this is no line of a user: {error}",
            object_name=place,
            hint="python -m maxbrod.mount.users NAME prints the lines of a user",
        ) from None
    verifier = ScramVerifier(
        mechanism=mechanism, iterations=iterations, salt=salt, stored_key=stored_key, server_key=server_key
    )
    return name, verifier


def user_lines(name: str, password: str) -> list[str]:
    """The lines of a user in the file. UsageError if the name or the password cannot be used."""
    if not name or name != "".join(name.split()) or name.startswith("#"):
        raise UsageError("a user's name has no spaces and does not begin with #")
    if not password:
        raise UsageError("the password is empty")
    return [ScramVerifier.of(password, mechanism).line(name) for mechanism in SCRAM_DIGESTS]


def main(arguments: list[str]) -> int:
    """Print the lines of a user. The password comes from the terminal, or else from standard input."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m maxbrod.mount.users NAME\n")
        return UsageError.exit_code
    ask = sys.stdin.isatty()
    password = getpass.getpass("password: ") if ask else sys.stdin.readline().rstrip("\n")
    try:
        lines = user_lines(arguments[0], password)
        if ask and getpass.getpass("again: ") != password:
            raise UsageError("the two passwords differ")
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

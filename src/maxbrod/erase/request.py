"""What an erasure is asked for, from its options: which records, by which keys, and who signs."""

from __future__ import annotations

import base64
import binascii
import os
import sys
from enum import StrEnum
from typing import Final

from maxbrod.erase.options import KEY_VARIABLE, EraseOptions
from maxbrod.errors import UsageError
from maxbrod.signature import SigningKey, parse_key, read_key

_ENCODINGS: Final = ("utf-8", "hex", "base64")


class Choice(StrEnum):
    """How records are chosen."""

    KEYS = "keys"
    WHERE = "where"
    LOG_START = "below-log-start"
    LEDGER = "ledger"
    """Those of older erasures."""


def choice_of(options: EraseOptions) -> Choice:
    """UsageError: there is none, or more than one, or no topic."""
    asked = {
        Choice.KEYS: bool(options.keys) or options.keys_file is not None,
        Choice.WHERE: options.where is not None,
        Choice.LOG_START: options.below_log_start,
        Choice.LEDGER: options.again,
    }
    chosen = [choice for choice, is_asked in asked.items() if is_asked]
    if len(chosen) != 1:
        raise UsageError(
            "nothing says which records to erase" if not chosen else f"{' and '.join(chosen)} are given together",
            hint="give one of --key and --keys-file, --where, --below-log-start, --again",
        )
    if not options.topics and chosen != [Choice.LEDGER]:
        raise UsageError("no topic is named", hint="give --topic")
    return chosen[0]


def signing_key_of(options: EraseOptions) -> SigningKey | None:
    if options.signing_key_file is not None:
        return read_key(options.signing_key_file)
    text = os.environ.get(KEY_VARIABLE)
    return parse_key(text.encode(), name=f"${KEY_VARIABLE}") if text else None


def keys_of(options: EraseOptions) -> list[bytes]:
    """Read the keys. UsageError: one is written wrongly; it is not shown."""
    texts: list[str] = list(options.keys)
    if options.keys_file is not None:
        try:
            whole = sys.stdin.read() if str(options.keys_file) == "-" else options.keys_file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the keys cannot be read: {error}", object_name=str(options.keys_file)) from None
        texts += [line for line in whole.split("\n") if line]
    if not texts:
        raise UsageError("there are no keys", object_name=str(options.keys_file))
    return [_key(text, options.key_encoding) for text in texts]


def _key(text: str, encoding: str) -> bytes:
    try:
        match encoding:
            case "utf-8":
                return text.encode()
            case "hex":
                return bytes.fromhex(text)
            case "base64":
                return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        # The key itself stays out of messages.
        raise UsageError(f"a key is not valid {encoding}") from None
    raise UsageError(f"keys cannot be written as {encoding!r}", hint=f"use one of {', '.join(_ENCODINGS)}")

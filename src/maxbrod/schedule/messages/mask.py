"""Masks secrets in texts that leave the process: messages, the state in the archive, lines of the log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final
from urllib.parse import quote, quote_plus, urlsplit

from pydantic import BaseModel, SecretStr

MASK: Final = "********"
_SHORTEST: Final = 4
"""A shorter secret would mask parts of ordinary words."""
_USER: Final = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")


class Masker:
    """Replaces every secret of a configuration in a text, also percent-encoded, and passwords in URLs."""

    def __init__(self, *sources: object) -> None:
        found = {secret for source in sources for secret in _secrets(source)}
        parts = {part for secret in found for part in _forms(secret)}
        words = sorted((part for part in parts if len(part) >= _SHORTEST), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, words))) if words else None

    def __call__(self, text: str) -> str:
        masked = text if self._pattern is None else self._pattern.sub(MASK, text)
        return _USER.sub(MASK, masked)

    def maybe(self, text: str | None) -> str | None:
        return None if text is None else self(text)


def _forms(secret: str) -> Iterator[str]:
    yield from (secret, quote(secret), quote(secret, safe=""), quote_plus(secret))
    # Of an address, the path and the query are what nobody may know; libraries quote them without the host.
    address = urlsplit(secret) if "://" in secret else None
    if address is not None:
        yield from (address.path, address.query)


def _secrets(node: Any) -> Iterator[str]:  # noqa: ANN401 - any part of a configuration
    if isinstance(node, SecretStr):
        yield node.get_secret_value()
    elif isinstance(node, BaseModel):
        yield from _all(getattr(node, name) for name in type(node).model_fields)
    elif isinstance(node, Mapping):
        yield from _all(node.values())
    elif is_dataclass(node) and not isinstance(node, type):
        yield from _all(getattr(node, field.name) for field in fields(node))
    elif isinstance(node, tuple | list | set | frozenset):
        yield from _all(node)


def _all(nodes: Iterable[Any]) -> Iterator[str]:
    for node in nodes:
        yield from _secrets(node)

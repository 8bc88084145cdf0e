"""The names of objects in an encrypted archive: topics are not readable in them. Pure.

`segments/<topic>/…` becomes `segments/<topic, encrypted>/…` by AES-SIV, which gives the same name for the same topic,
with a key of the archive that every holder of a public key has. It is written in base32, in pieces of at most 200
letters, each but the last followed by `-`. All other names are as they are.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

NAME_KEY_BYTES: Final = 64
_FOLDER: Final = "segments"
_PIECE: Final = 200
_GOES_ON: Final = "-"


class HiddenNames:
    def __init__(self, key: bytes) -> None:
        self._siv = AESSIV(key)
        self._known: dict[str, str] = {}
        self._topics: dict[str, str] = {}

    def hide(self, path: str) -> str:
        """The name in the store."""
        folder, _, rest = path.partition("/")
        if folder != _FOLDER or not rest:
            return path
        topic, slash, tail = rest.partition("/")
        hidden = self._known.get(topic)
        if hidden is None:
            text = base64.b32encode(self._siv.encrypt(topic.encode(), None)).decode().rstrip("=").lower()
            pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
            hidden = self._known[topic] = f"{_GOES_ON}/".join(pieces)
        return f"{folder}/{hidden}{slash}{tail}"

    def show(self, path: str) -> str:
        """The name that was hidden; a name that is none of ours is shown as it is."""
        folder, _, rest = path.partition("/")
        if folder != _FOLDER or not rest:
            return path
        pieces = rest.split("/")
        count = next((number for number, piece in enumerate(pieces, 1) if not piece.endswith(_GOES_ON)), len(pieces))
        text = "".join(piece.removesuffix(_GOES_ON) for piece in pieces[:count])
        topic = self._topics.get(text)
        if topic is None:
            try:
                data = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
                topic = self._topics[text] = self._siv.decrypt(data, None).decode()
            except (InvalidTag, binascii.Error, ValueError):
                return path
        return "/".join([folder, topic, *pieces[count:]])

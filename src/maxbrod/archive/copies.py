"""What an archive that is a copy of another one says of itself, in its folder `copies`.

The origin is put before anything else, and says whose copy it is: so a copy that was killed before it had a catalog is
known again, and two sources never meet in one target. An announcement has a version in its name. It is put before what
looks as if that version were lost, and is out of date once the catalog has that version: see `archive.unlisted`.
"""

from __future__ import annotations

import json
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from pydantic import TypeAdapter, ValidationError

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectExistsError, ObjectNotFoundError, RefusedError
from maxbrod.storage.interface import Storage

COPIES: Final = "copies"
ORIGIN: Final = f"{COPIES}/origin.json"
_ANNOUNCEMENT: Final = re.compile(rf"{COPIES}/(\d{{20}})-[0-9a-f]{{8}}\.json")
_FORMAT: Final = "maxbrod.copy"
_VERSION: Final = 1
_ELSEWHERE: Final = "name another DST, or the same SRC and topics as before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The archive that was copied here first, and what of it."""

    table_id: str
    """Delta's id of its catalog. A repair may have given it another one since."""
    topics: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """The patterns as they were given; none: the whole archive."""

    @property
    def is_whole(self) -> bool:
        return not self.topics and not self.exclude


_DOCUMENT: Final = TypeAdapter(Origin)


def read_origin(storage: Storage) -> Origin | None:
    """CorruptDataError: it cannot be read."""
    try:
        data = bytes(storage.get(ORIGIN))
    except ObjectNotFoundError:
        return None
    try:
        fields = strict_json.parse(data)
        if fields.pop(_FORMAT) != _VERSION:
            raise ValueError("its version is unknown")
        return _DOCUMENT.validate_python(fields)
    except (ValueError, KeyError, AttributeError, ValidationError) as error:
        raise CorruptDataError(
            f"the document that says whose copy this is cannot be read: {str(error).splitlines()[0]}",
            operation="copy",
            object_name=storage.name_of(ORIGIN),
            hint="delete it if you know that this is a copy of SRC",
        ) from None


def claim(storage: Storage, origin: Origin) -> Origin:
    """Put the document, unless there is one, and return what is there."""
    with suppress(ObjectExistsError):
        storage.at_hand().put(ORIGIN, json.dumps({_FORMAT: _VERSION, **asdict(origin)}, sort_keys=True).encode())
        return origin
    return read_origin(storage) or origin


def demand_same(found: Origin, mine: Origin, *, name: str, is_empty: bool) -> None:
    """RefusedError: another archive is copied there, or other topics of it. `is_empty`: there is no catalog yet."""
    if (found.topics, found.exclude) != (mine.topics, mine.exclude):
        what = "the whole archive" if found.is_whole else f"the topics {', '.join(found.topics) or '*'}"
        what += f" without {', '.join(found.exclude)}" if found.exclude else ""
        raise RefusedError(
            f"another selection is copied there: {what}", operation="copy", object_name=name, hint=_ELSEWHERE
        )
    if is_empty and found.table_id != mine.table_id:
        raise RefusedError(
            "the copy of another archive was begun there, or SRC was made anew since",
            operation="copy",
            object_name=name,
            hint="name another DST, or delete what is there",
        )


def announce_version(storage: Storage, version: int) -> None:
    """Say that a copy is about to bring the catalog to this version."""
    document = json.dumps({_FORMAT: _VERSION, "version": version}).encode()
    storage.at_hand().put(f"{COPIES}/{version:020}-{secrets.token_hex(4)}.json", document)


def announced_version(storage: Storage) -> int:
    """The highest version that a copy was about to bring the catalog to; -1: none."""
    return max((version for _, version in _announcements(storage)), default=-1)


def withdraw_announcements(storage: Storage, version: int) -> None:
    """Delete those up to this version, which the catalog has. Never raises: they say nothing any more."""
    with suppress(MaxbrodError):
        storage.delete([path for path, announced in _announcements(storage) if announced <= version])


def _announcements(storage: Storage) -> list[tuple[str, int]]:
    found = ((info.path, _ANNOUNCEMENT.fullmatch(info.path)) for info in storage.list(COPIES))
    return [(path, int(matched[1])) for path, matched in found if matched is not None]

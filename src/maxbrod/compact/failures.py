"""Why a group of segments stays as it is, as a worker reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from maxbrod.errors import (
    CorruptDataError,
    MaxbrodError,
    ObjectNotFoundError,
    TruncatedDataError,
    UnsupportedFormatError,
)

_DAMAGES: Final = (CorruptDataError, ObjectNotFoundError, TruncatedDataError, UnsupportedFormatError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    message: str
    object_name: str | None
    offset: int | None
    damaged: bool
    """Otherwise the store did not answer, and trying again may help."""
    hint: str | None = None


def failure_of(error: MaxbrodError) -> Failure:
    return Failure(
        message=error.message,
        object_name=error.object_name,
        offset=error.offset,
        damaged=isinstance(error, _DAMAGES),
        hint=error.hint,
    )

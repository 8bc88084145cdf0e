"""Whether log directories are whole. Their survey has checked every batch already, so a deep check adds the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.errors import MaxbrodError
from maxbrod.layouts.foreign import Fault
from maxbrod.layouts.logdir.reading import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.layouts.foreign import Survey
    from maxbrod.storage.interface import Storage


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    yield from survey.faults
    for segment in survey.segments if deep else ():
        try:
            for _ in read(storage, segment, None):
                pass
        except MaxbrodError as error:
            yield Fault(path=segment.path, message=error.message, offset=error.offset)

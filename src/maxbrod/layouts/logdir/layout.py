"""The layout `logdir`: the log directories of one broker, or of several. They are read, never written."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NoReturn

from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.foreign import Layout, RecordAccess
from maxbrod.layouts.logdir.format import is_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.layouts.foreign import ForeignSegment, Survey
    from maxbrod.storage.interface import Storage

TAIL: Final = "uncommitted_tail"
CHECK_CRC: Final = "check_crc"
_NAMES_MAX: Final = 10_000


def _detect(storage: Storage) -> bool:
    # By names alone: the survey's module takes long to load.
    return any(is_log(info.path) for info in islice(storage.list(), _NAMES_MAX))


def _survey(storage: Storage, uncommitted_tail: str = "false", check_crc: str = "true") -> Survey:
    """The option `uncommitted_tail` includes records above the high watermark.

    `check_crc=false` leaves the checksums, and the middle of large files, to the reader of the segments: it raises
    CorruptDataError if there is damage, or if the middle is not what the ends let assume.
    """
    from maxbrod.layouts.logdir.survey import survey  # noqa: PLC0415 - takes long to load

    for name, flag in ((TAIL, uncommitted_tail), (CHECK_CRC, check_crc)):
        if flag not in {"true", "false"}:
            raise UsageError(f"{name} is true or false, not {flag!r}")
    return survey(storage, uncommitted_tail=uncommitted_tail == "true", check_crc=check_crc == "true")


def _refuse(storage: Storage, *_: object) -> NoReturn:
    raise RefusedError(
        "a broker's log directory is read, never written",
        object_name=storage.url,
        hint="choose another place, and another layout",
    )


def _records() -> RecordAccess:
    from maxbrod.layouts.logdir import reader  # noqa: PLC0415 - takes long to load

    return RecordAccess(read=reader.read, write=_refuse, check=reader.check)


def _read_batches(
    storage: Storage, segment: ForeignSegment, *, check_crc: bool = True
) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    from maxbrod.layouts.logdir import reader  # noqa: PLC0415 - takes long to load

    return reader.read_batches(storage, segment, check_crc=check_crc)


LAYOUT: Final = Layout(
    name="logdir",
    detect=_detect,
    look=_survey,
    choices=(TAIL, CHECK_CRC),
    publish=_refuse,
    records=_records,
    read_batches=_read_batches,
    losses=(),
)

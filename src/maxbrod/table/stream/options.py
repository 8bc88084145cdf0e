"""The options that a stream has beyond those of a read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.errors import UsageError
from maxbrod.table.read.options import TableOptions, parse_options, size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_LIMIT_MAX: Final = 1 << 40
_TRUTHS: Final = {"true": True, "false": False}
_NAMES: Final = ("startingRun", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "failOnDataLoss")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    table: TableOptions
    starting: str = EARLIEST
    """Or `LATEST`, or a run: where the archive ended then."""
    offsets_max: int | None = None
    """What a batch has at the most."""
    bytes_max: int | None = None
    """What a batch has at the most, if one segment is not larger."""
    fail_on_data_loss: bool = True


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """UsageError says what cannot be right."""
    known = {name.lower(): name for name in _NAMES}
    own = {known[name.lower()]: value for name, value in options.items() if name.lower() in known}
    table = parse_options({name: value for name, value in options.items() if name.lower() not in known})
    if table.as_of is not None:
        raise UsageError(
            "a stream goes on, and the option asOf asks for an end",
            hint="read up to a run as a batch, or stop at what is there with the trigger availableNow",
        )
    return StreamOptions(
        table=table,
        starting=own.get("startingRun", EARLIEST),
        offsets_max=_limit("maxOffsetsPerTrigger", own.get("maxOffsetsPerTrigger")),
        bytes_max=_limit("maxBytesPerTrigger", own.get("maxBytesPerTrigger")),
        fail_on_data_loss=_truth("failOnDataLoss", own.get("failOnDataLoss", "true")),
    )


def _limit(name: str, word: str | None) -> int | None:
    # No batch is so large, and sums of this many stay within 64 bits.
    return None if word is None else min(size_of(name, word, _LIMIT_MAX), _LIMIT_MAX)


def _truth(name: str, word: str) -> bool:
    if word.lower() not in _TRUTHS:
        raise UsageError(f"the option {name} is {word!r}", hint=f"choose of {', '.join(_TRUTHS)}")
    return _TRUTHS[word.lower()]

"""The options that a stream has beyond those of a read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.errors import UsageError
from maxbrod.table.read.options import TableOptions, parse_options, size_of, switch

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_LIMIT_MAX: Final = 1 << 40
_NAMES: Final = ("startingRun", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "failOnDataLoss")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    table: TableOptions
    starting: str = EARLIEST
    """Or `LATEST`, or a run: where the archive ended then."""
    offsets_max: int | None = None
    """The most offsets of a batch."""
    bytes_max: int | None = None
    """The most stored bytes of a batch. A batch of a single segment may exceed it."""
    fail_on_data_loss: bool = True


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """UsageError names the option that is wrong."""
    known = {name.lower(): name for name in _NAMES}
    own = {known[name.lower()]: value for name, value in options.items() if name.lower() in known}
    table = parse_options({name: value for name, value in options.items() if name.lower() not in known})
    if table.as_of is not None:
        raise UsageError(
            "a stream has no end, so it cannot have the option asOf",
            hint="read up to a run as a batch, or use the trigger availableNow to stop at what the archive holds now",
        )
    return StreamOptions(
        table=table,
        starting=own.get("startingRun", EARLIEST),
        offsets_max=_limit("maxOffsetsPerTrigger", own.get("maxOffsetsPerTrigger")),
        bytes_max=_limit("maxBytesPerTrigger", own.get("maxBytesPerTrigger")),
        fail_on_data_loss=switch("failOnDataLoss", own.get("failOnDataLoss", "true")),
    )


def _limit(name: str, word: str | None) -> int | None:
    # No batch is this large, and sums of values up to this stay within 64 bits.
    return None if word is None else min(size_of(name, word, _LIMIT_MAX), _LIMIT_MAX)

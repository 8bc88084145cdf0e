"""Which options a tree of this layout can be written with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from maxbrod.layouts.foreign import WriteOptions


def check_options(options: WriteOptions) -> None:
    if options.codec not in {None, "none"}:
        raise UsageError(f"the layout binlog knows no codec, so not {options.codec!r}", hint="leave the codec out")
    if options.extra:
        raise UsageError(f"the layout binlog has no option {', '.join(sorted(options.extra))}")
    for name in ("segment_bytes_max", "segment_records_max"):
        limit = getattr(options, name)
        if limit is not None and limit < (0 if name == "segment_bytes_max" else 1):
            raise UsageError(f"{name} cannot be {limit}")

"""Which options a tree of this layout can be written with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from maxbrod.layouts.foreign import WriteOptions

CODECS: Final = ("null", "deflate", "snappy", "bzip2", "xz", "zstandard")
_LEVELS: Final = {"deflate": (0, 9), "bzip2": (1, 9), "xz": (0, 9), "zstandard": (1, 22)}
_ALIASES: Final = {None: "null", "none": "null", "zstd": "zstandard"}


def check_options(options: WriteOptions) -> str:
    """Avro's name of the codec, if all options make sense."""
    if options.extra:
        raise UsageError(f"the layout avro has no option {', '.join(sorted(options.extra))}")
    for name in ("segment_bytes_max", "segment_records_max"):
        limit = getattr(options, name)
        if limit is not None and limit < 1:
            raise UsageError(f"{name} cannot be {limit}")
    codec = _ALIASES.get(options.codec) or str(options.codec)
    if codec not in CODECS:
        raise UsageError(f"Avro has no codec {codec!r} that we write", hint=f"choose of {', '.join(CODECS)}")
    low, high = _LEVELS.get(codec, (0, -1))
    if options.level is not None and not low <= options.level <= high:
        raise UsageError(
            f"the codec {codec} has no level {options.level}",
            hint=f"it has {low} to {high}" if codec in _LEVELS else "leave the level out",
        )
    return codec

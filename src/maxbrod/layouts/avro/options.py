"""The options for writing this layout, and what one of them loses."""

from __future__ import annotations

from typing import Final

from maxbrod.errors import UsageError
from maxbrod.layouts.avro.schema import CLAIM, GENERATION, INSTANCE
from maxbrod.layouts.foreign import Loss, WriteOptions

CODECS: Final = ("null", "deflate", "snappy", "bzip2", "xz", "zstandard")
_LEVELS: Final = {"deflate": (0, 9), "bzip2": (1, 9), "xz": (0, 9), "zstandard": (1, 22)}
_SCHEMAS: Final = ("full", "seed")
_SEED_LOSSES: Final = (
    Loss(
        what="null values: they are restored as empty ones, so that no tombstone is left", real=True, field="value_null"
    ),
    Loss(
        what="headers: their order, all but the last of a name, nulls, and names that are not UTF-8",
        real=True,
        field="headers",
    ),
    Loss(what="the timestamp type: all timestamps are restored as create times", real=False, field="timestamp_type"),
)
_ALIASES: Final = {None: "null", "none": "null", "zstd": "zstandard"}


def check_options(options: WriteOptions) -> str:
    """Avro's name of the codec. UsageError: an option is invalid."""
    unknown = sorted(set(options.extra) - {"schema", INSTANCE, GENERATION, CLAIM})
    if unknown:
        raise UsageError(f"the layout avro has no option {', '.join(unknown)}", hint="it has schema")
    if options.extra.get("schema", "full") not in _SCHEMAS:
        raise UsageError(f"there is no schema {options.extra['schema']!r}", hint=f"choose one of {', '.join(_SCHEMAS)}")
    for name in ("segment_bytes_max", "segment_records_max"):
        limit = getattr(options, name)
        if limit is not None and limit < 1:
            raise UsageError(f"{name} cannot be {limit}")
    codec = _ALIASES.get(options.codec) or str(options.codec)
    if codec not in CODECS:
        raise UsageError(f"the layout avro has no codec {codec!r}", hint=f"choose one of {', '.join(CODECS)}")
    low, high = _LEVELS.get(codec, (0, -1))
    if options.level is not None and not low <= options.level <= high:
        raise UsageError(
            f"the codec {codec} has no level {options.level}",
            hint=f"it has {low} to {high}" if codec in _LEVELS else "leave the level out",
        )
    return codec


def is_seed(options: WriteOptions) -> bool:
    """Whether files have exactly the schema of the tool's documentation."""
    return options.extra.get("schema") == "seed"


def losses(options: WriteOptions) -> tuple[Loss, ...]:
    return _SEED_LOSSES if is_seed(options) else ()

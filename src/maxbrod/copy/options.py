"""The options of `maxbrod copy`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from maxbrod.option_values import Reads, Seconds, parse_seconds
from maxbrod.options import (
    BEHAVIOR,
    Exclude,
    FromStorage,
    Options,
    RateLimit,
    SingleWriter,
    Topics,
    ToStorage,
    option,
)

FOLLOWING: Final = "Following"
STORAGE_CLASSES: Final = "Storage classes"
CLASSES: Final = (
    *("STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"),
    *("GLACIER", "DEEP_ARCHIVE"),
)
"""Objects in the last two must be brought back before they can be read."""


def parse_classes(value: object) -> object:
    """`30d=STANDARD_IA,90d=GLACIER`, or a mapping from ages to classes."""
    if value is None:
        return {}
    pairs = value.items() if isinstance(value, Mapping) else [_pair(word) for word in str(value).split(",")]
    found: dict[str, str] = {}
    for age, name in pairs:
        parse_seconds(str(age))
        if name not in CLASSES:
            raise ValueError(f"has no storage class behind an age: one of {', '.join(CLASSES)}")
        found[str(age)] = str(name)
    return found


def _pair(word: str) -> tuple[str, str]:
    age, equals, name = word.strip().partition("=")
    if not equals:
        raise ValueError("is not of the form 30d=STANDARD_IA,90d=GLACIER")
    return age, name


ClassesByAge = Annotated[
    dict[str, str],
    Reads(
        parse=parse_classes,
        python="Mapping[str, str] | str",
        schema={"type": ["object", "string"], "additionalProperties": {"type": "string"}},
    ),
]


@dataclass(frozen=True, kw_only=True)
class CopyOptions(Options):
    source: str | None = option("The archive to copy, in maxbrod's own layout.", metavar="SRC", argument=True)
    target: str | None = option(
        "Where the copy is: empty, or an earlier copy of the same archive.", metavar="DST", argument=True
    )
    from_storage: FromStorage = field(default_factory=dict)
    to_storage: ToStorage = field(default_factory=dict)
    topics: Topics = ()
    exclude: Exclude = ()
    storage_class_after: ClassesByAge = option(
        "Write segments and packs to S3 in this storage class if their newest record is at least this old: "
        "30d=STANDARD_IA,90d=GLACIER. The catalog and all other objects stay at hand.",
        STORAGE_CLASSES,
        "AGE=CLASS,…",
        default_factory=dict,
    )
    thaw: bool = option(
        "If objects of SRC are in an archive class of S3, ask S3 to restore them, wait, and copy them. This takes "
        "hours, and S3 charges for it. Otherwise the report says which objects they are.",
        STORAGE_CLASSES,
        default=False,
    )
    thaw_days: int = option("How long S3 keeps what it restores.", STORAGE_CLASSES, "N", default=3, low=1)
    thaw_tier: str = option(
        "How fast S3 restores: Bulk, Standard or Expedited.", STORAGE_CLASSES, "TIER", default="Standard"
    )
    read_back: bool = option(
        "Read every object that was written back from DST and compare it. What is read from SRC is always compared "
        "with the digests of the catalog.",
        BEHAVIOR,
        default=False,
    )
    rate_bytes_per_s: RateLimit = None
    single_writer: SingleWriter = False
    follow: bool = option("Continue until SIGTERM or Ctrl-C, with one copy per interval.", FOLLOWING, default=False)
    every: Seconds = option("The interval.", FOLLOWING, "TIME", default=60.0, low=1)
    dry_run: bool = option("Print what would be copied, and change nothing.", BEHAVIOR, default=False)

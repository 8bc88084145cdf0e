"""The options of `maxbrod compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.option_values import Words
from maxbrod.options import BEHAVIOR, SELECTION, SelectionOptions, option

SOURCE: Final = "Source"


@dataclass(frozen=True, kw_only=True)
class CompareOptions(SelectionOptions):
    source: str | None = option(
        "Compare with topics of this cluster instead of an archive.", SOURCE, "HOST:PORT", python=False
    )
    source_command_config: Path | None = option(
        "Client properties of the source cluster.", SOURCE, "FILE", python=False
    )
    restore: str | None = option(
        "Compare what this restore has written, according to its report. Detected automatically by default.",
        SELECTION,
        "ID",
    )
    offsets: str = option(
        "exact (records at the same offset), append (records in the order of each partition), set (whole topics in "
        "any order), or auto (as restored, else exact).",
        BEHAVIOR,
        "auto|exact|append|set",
        default="auto",
    )
    ignore: Words = option("Ignore timestamp, key, value or headers. May be repeated.", BEHAVIOR, "FIELD", default=())
    differences: int = option("Report at most this many differences.", BEHAVIOR, "N", default=10, low=0)

"""The options of `maxbrod compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from maxbrod.options import BEHAVIOR, SELECTION, Option, SelectionOptions, Words

SOURCE: Final = "Source"


@dataclass(frozen=True, kw_only=True)
class CompareOptions(SelectionOptions):
    source: Annotated[
        str | None,
        Option("Compare with topics of this cluster instead of an archive.", SOURCE, "HOST:PORT", python=False),
    ] = None
    source_command_config: Annotated[
        Path | None, Option("Client properties of the source cluster.", SOURCE, "FILE", python=False)
    ] = None
    restore: Annotated[
        str | None,
        Option(
            "Compare what this restore has written, according to its report. Detected automatically by default.",
            SELECTION,
            "ID",
        ),
    ] = None
    offsets: Annotated[
        str,
        Option(
            "exact (records at the same offset), append (records in the order of each partition), set (whole topics in "
            "any order), or auto (as restored, else exact).",
            BEHAVIOR,
            "auto|exact|append|set",
        ),
    ] = "auto"
    ignore: Annotated[
        Words, Option("Ignore timestamp, key, value or headers. May be repeated.", BEHAVIOR, "FIELD")
    ] = ()
    differences: Annotated[int, Option("Report at most this many differences.", BEHAVIOR, "N", low=0)] = 10

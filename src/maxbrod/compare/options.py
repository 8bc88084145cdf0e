"""The options of `maxbrod compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.option_values import RegistryUrl, Words
from maxbrod.options import BEHAVIOR, REGISTRY, SELECTION, SelectionOptions, option

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
    schema_registry: RegistryUrl | None = option(
        "Compare the captured schemas with this registry, too: ids, versions and texts, or what a restore with "
        "--remap-schemas has made of them.",
        REGISTRY,
        "URL",
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

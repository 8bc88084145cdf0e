"""The options of `maxbrod repair`."""

from dataclasses import dataclass
from typing import Annotated

from maxbrod.options import Option, Options


@dataclass(frozen=True, kw_only=True)
class RepairOptions(Options):
    apply: Annotated[bool, Option("Change the archive. Without it, only report what would be done.")] = False
    deep: Annotated[
        bool,
        Option(
            "Read every object and verify it. Without it, objects count as sound if they exist and are long enough."
        ),
    ] = False
    rebuild: Annotated[bool, Option("Rebuild the catalog even if it can be read.")] = False
    single_writer: Annotated[
        bool, Option("Promise that nobody else writes to this archive, on a store without conditional puts.")
    ] = False

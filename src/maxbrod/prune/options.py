"""The options of `maxbrod prune`."""

from dataclasses import dataclass
from typing import Annotated

from maxbrod.options import Option, Options


@dataclass(frozen=True, kw_only=True)
class PruneOptions(Options):
    older_than: Annotated[
        str | None,
        Option("Required. Delete segments whose records are all older than this: 24h, 90d.", metavar="TIME"),
    ] = None
    delete: Annotated[bool, Option("Delete. Without it, only list what would be deleted.")] = False

"""The options of `maxbrod hold`."""

from dataclasses import dataclass
from typing import Annotated

from maxbrod.options import Option, Options, Since, Topics, Until


@dataclass(frozen=True, kw_only=True)
class HoldOptions(Options):
    id: Annotated[str | None, Option("The id of the hold, or its beginning.", metavar="ID", argument=True)] = None
    topics: Topics = ()
    since: Since = None
    until: Until = None
    run: Annotated[str | None, Option("Hold the archive as this run left it, and the run itself.", metavar="RUN")] = (
        None
    )
    who: Annotated[
        str | None,
        Option("Who holds or releases. The name of the user who runs the command by default.", metavar="NAME"),
    ] = None
    why: Annotated[str | None, Option("The reason. Required.", metavar="TEXT")] = None
    all: Annotated[bool, Option("List released holds as well.")] = False

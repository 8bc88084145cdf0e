"""The options of `maxbrod hold`."""

from dataclasses import dataclass

from maxbrod.options import Options, Since, Topics, Until, option


@dataclass(frozen=True, kw_only=True)
class HoldOptions(Options):
    id: str | None = option("The id of the hold, or its beginning.", metavar="ID", argument=True)
    topics: Topics = ()
    since: Since = None
    until: Until = None
    run: str | None = option("Hold the archive as this run left it, and the run itself.", metavar="RUN")
    who: str | None = option(
        "Who holds or releases. The name of the user who runs the command by default.", metavar="NAME"
    )
    why: str | None = option("The reason. Required.", metavar="TEXT")
    all: bool = option("List released holds as well.", default=False)

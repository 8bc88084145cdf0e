"""The options of `maxbrod lock`."""

from dataclasses import dataclass

from maxbrod.option_values import Seconds, Time
from maxbrod.options import Options, option


@dataclass(frozen=True, kw_only=True)
class LockOptions(Options):
    until: Time | None = option("Lock until this time. Give the time zone.", metavar="TIME")
    for_: Seconds | None = option("Lock for this long from now, such as 30d.", metavar="TIME", flags=("--for",))
    lock_mode: str | None = option(
        "The mode of locks of objects that have none: governance (default), or compliance, which nobody can end. "
        "Others keep their mode.",
        metavar="governance|compliance",
        setting="storage.lock_mode",
    )
    dry_run: bool = option("Count what would be locked, and change nothing.", default=False)

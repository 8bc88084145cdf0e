"""The options of `maxbrod repair`."""

from dataclasses import dataclass

from maxbrod.option_values import Time
from maxbrod.options import Options, option


@dataclass(frozen=True, kw_only=True)
class RepairOptions(Options):
    apply: bool = option("Change the archive. Without it, only report what would be done.", default=False)
    deep: bool = option(
        "Read every object and verify it. Without it, objects count as sound if they exist and are long enough.",
        default=False,
    )
    rebuild: bool = option("Rebuild the catalog even if it can be read.", default=False)
    versions_before: Time | None = option(
        "First bring every object back as it was before this time, from the older versions that the bucket keeps. Give "
        "the time zone.",
        metavar="TIME",
    )
    single_writer: bool = option(
        "Promise that nobody else writes to this archive, on a store without conditional puts.", default=False
    )

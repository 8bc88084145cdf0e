"""The options of `maxbrod drill`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.option_values import RegistryUrl, Words
from maxbrod.options import CLUSTER, REGISTRY, SELECTION, AsOf, Exclude, MetricsOptions, Topics, option

KEY_VARIABLE: Final = "MAXBROD_DRILL_KEY"
REPORT: Final = "Report"


@dataclass(frozen=True, kw_only=True)
class DrillOptions(MetricsOptions):
    sandbox: bool = option(
        "Start a temporary cluster for the drill; needs Java. The default without --bootstrap.", CLUSTER, default=False
    )
    topics: Topics = ()
    exclude: Exclude = ()
    as_of: AsOf = None
    sample: str = option(
        "Drill a random part of the partitions: a share such as 5%, a number, or all.", SELECTION, "PART", default="all"
    )
    seed: int | None = option("Draw the sample that this number determines.", SELECTION, "N")
    accept_gaps: bool = option(
        "Drill the rest if records are known to be missing from the archive.", SELECTION, default=False
    )
    schema_registry: RegistryUrl | None = option(
        "Import the captured schemas into this empty scratch registry, compare them, and delete them again.",
        REGISTRY,
        "URL",
    )
    unframed: Words = option(
        "Keys or values of these topics have no schema ids, whatever they begin with. May be repeated.",
        REGISTRY,
        "TOPIC[:key|:value]",
        default=(),
    )
    report_dir: Path = option("Write reports to this folder.", REPORT, "FOLDER", default=Path("maxbrod-drills"))
    key_file: Path | None = option(
        f"A secret, or an Ed25519 key in PEM form, that signs reports. Else ${KEY_VARIABLE}.", REPORT, "FILE"
    )

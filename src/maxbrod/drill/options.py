"""The options of `maxbrod drill`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from maxbrod.options import (
    CLUSTER,
    SELECTION,
    AsOf,
    Exclude,
    MetricsFile,
    MetricsHost,
    MetricsNames,
    MetricsPort,
    Option,
    Options,
    Topics,
)

KEY_VARIABLE: Final = "MAXBROD_DRILL_KEY"
REPORT: Final = "Report"


@dataclass(frozen=True, kw_only=True)
class DrillOptions(Options):
    sandbox: Annotated[
        bool,
        Option("Start a temporary cluster for the drill; needs Java. The default without --bootstrap.", CLUSTER),
    ] = False
    topics: Topics = ()
    exclude: Exclude = ()
    as_of: AsOf = None
    sample: Annotated[
        str, Option("Drill a random part of the partitions: a share such as 5%, a number, or all.", SELECTION, "PART")
    ] = "all"
    seed: Annotated[int | None, Option("Draw the sample that this number determines.", SELECTION, "N")] = None
    accept_gaps: Annotated[
        bool, Option("Drill the rest if records are known to be missing from the archive.", SELECTION)
    ] = False
    report_dir: Annotated[Path, Option("Write reports to this folder.", REPORT, "FOLDER")] = Path("maxbrod-drills")
    key_file: Annotated[
        Path | None,
        Option(f"A secret, or an Ed25519 key in PEM form, that signs reports. Else ${KEY_VARIABLE}.", REPORT, "FILE"),
    ] = None
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    metrics_names: MetricsNames = ()
    metrics_file: MetricsFile = None

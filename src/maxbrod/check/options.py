"""The options of `maxbrod check`."""

from dataclasses import dataclass
from typing import Annotated, Final

from maxbrod.options import MetricsFile, MetricsHost, MetricsNames, MetricsPort, Option, Options, TopicWords

DEEP: Final = "Deep check"


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    topics: TopicWords = ()
    deep: Annotated[bool, Option("Read everything in the archive and verify it.", DEEP)] = False
    sample: Annotated[str | None, Option("Read only a random part: 5%, or 0.05. Implies --deep.", DEEP, "PART")] = None
    seed: Annotated[int | None, Option("Draw the sample that this number determines.", DEEP, "N", low=0)] = None
    restart: Annotated[bool, Option("Read everything, including what an interrupted check has already read.", DEEP)] = (
        False
    )
    repair: Annotated[
        bool,
        Option(
            "First put right what can be: objects that something else has deleted become gaps 'pruned', after a "
            "confirmation; in other layouts, wrong or missing indexes are written again. For objects that were lost by "
            "accident use 'maxbrod repair', after which the next backup reads them again."
        ),
    ] = False
    yes: Annotated[bool, Option("With --repair: do not ask for confirmation.", flags=("--yes", "-y"))] = False
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    metrics_names: MetricsNames = ()
    metrics_file: MetricsFile = None

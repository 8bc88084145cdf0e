"""The options of `maxbrod check`."""

from dataclasses import dataclass
from typing import Final

from maxbrod.options import MetricsOptions, TopicWords, option

DEEP: Final = "Deep check"


@dataclass(frozen=True, kw_only=True)
class CheckOptions(MetricsOptions):
    topics: TopicWords = ()
    deep: bool = option("Read everything in the archive and verify it.", DEEP, default=False)
    sample: str | None = option("Read only a random part: 5%, or 0.05. Implies --deep.", DEEP, "PART")
    seed: int | None = option("Draw the sample that this number determines.", DEEP, "N", low=0)
    restart: bool = option(
        "Read everything, including what an interrupted check has already read.", DEEP, default=False
    )
    repair: bool = option(
        "First put right what can be: objects that something else has deleted become gaps 'pruned', after a "
        "confirmation; in other layouts, wrong or missing indexes are written again. For objects that were lost by "
        "accident use 'maxbrod repair', after which the next backup reads them again.",
        default=False,
    )
    yes: bool = option("With --repair: do not ask for confirmation.", default=False, flags=("--yes", "-y"))

"""The options of `maxbrod check`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.option_values import Paths
from maxbrod.options import MetricsOptions, TopicWords, option

DEEP: Final = "Deep check"
SIGNATURE: Final = "Signature"


@dataclass(frozen=True, kw_only=True)
class CheckOptions(MetricsOptions):
    topics: TopicWords = ()
    deep: bool = option("Read everything in the archive and verify it.", DEEP, default=False)
    sample: str | None = option("Read only a random part: 5%, or 0.05. Implies --deep.", DEEP, "PART")
    seed: int | None = option("Draw the sample that this number determines.", DEEP, "N", low=0)
    restart: bool = option(
        "Read everything, including what an interrupted check has already read.", DEEP, default=False
    )
    signature: Paths = option(
        "Prove that the catalog was signed with this Ed25519 key, and that nobody else has removed, exchanged or "
        "rolled back anything. The public key is sufficient. May be repeated: any of the keys may have signed.",
        SIGNATURE,
        "KEY",
        default=(),
    )
    since_version: int | None = option(
        "With --signature: accept that versions of the catalog below this one are not signed.", SIGNATURE, "N", low=1
    )
    pin: Path | None = option(
        "With --signature: the file that remembers the newest version seen, so that a rollback shows. By default in "
        "$XDG_STATE_HOME/maxbrod/pins.",
        SIGNATURE,
        "FILE",
    )
    repair: bool = option(
        "First put right what can be: objects that something else has deleted become gaps 'pruned', after a "
        "confirmation; in other layouts, wrong or missing indexes are written again. For objects that were lost by "
        "accident use 'maxbrod repair', after which the next backup reads them again.",
        default=False,
    )
    yes: bool = option("With --repair: do not ask for confirmation.", default=False, flags=("--yes", "-y"))

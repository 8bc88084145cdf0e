"""The options of `maxbrod evidence`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.option_values import Time
from maxbrod.options import SELECTION, Options, option

KEY_VARIABLE: Final = "MAXBROD_EVIDENCE_KEY"
REPORT: Final = "Report"


@dataclass(frozen=True, kw_only=True)
class EvidenceOptions(Options):
    since: Time | None = option(
        "Tell what happened from this time on. Give the time zone. By default everything that is known.",
        SELECTION,
        "TIME",
    )
    until: Time | None = option("Tell what happened before this time. Now by default.", SELECTION, "TIME")
    report_dir: Path = option("Write both files to this folder.", REPORT, "FOLDER", default=Path("maxbrod-evidence"))
    key: Path | None = option(
        f"An Ed25519 key in PEM form, or a secret, that signs the document. Else ${KEY_VARIABLE}, else the key that "
        "signs the catalog. To verify one, the public half of an Ed25519 key is sufficient.",
        REPORT,
        "FILE",
    )

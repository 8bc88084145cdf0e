"""The options of `maxbrod erase`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.option_values import Bytes, Words
from maxbrod.options import BEHAVIOR, SELECTION, Exclude, Options, SingleWriter, option

CERTIFICATE: Final = "Certificate"
KEY_VARIABLE: Final = "MAXBROD_ERASE_SIGNING_KEY"


@dataclass(frozen=True, kw_only=True)
class EraseOptions(Options):
    topics: Words = option(
        "The topics that lose records: names, globs, or /regular expressions/ for the whole name; all of their "
        "incarnations. May be repeated. At least one, except with --again.",
        SELECTION,
        "PATTERN",
        default=(),
        flags=("--topic",),
    )
    exclude: Exclude = ()
    keys: Words = option(
        "Erase the records with this key. May be repeated.", SELECTION, "KEY", default=(), flags=("--key",)
    )
    keys_file: Path | None = option(
        "Erase the records with the keys in this file, one in each line. '-' reads standard input.", SELECTION, "FILE"
    )
    key_encoding: str = option("How keys are written: utf-8, hex or base64.", SELECTION, "ENCODING", default="utf-8")
    where: str | None = option(
        "Erase the records for which this SQL condition on the columns of the table holds. Runs on Spark.",
        SELECTION,
        "SQL",
    )
    below_log_start: bool = option(
        "Erase what lies below the log start offsets that the newest backup saw: all that DeleteRecords and retention "
        "have removed at the source, also where they ended inside a batch.",
        SELECTION,
        default=False,
    )
    again: bool = option(
        "Apply older erasures again: to what a hold had kept, a backup has read again, or a kill has left.",
        SELECTION,
        default=False,
    )
    certificate: Path | None = option("Write the certificate to this file, too.", CERTIFICATE, "FILE")
    signing_key_file: Path | None = option(
        f"An Ed25519 key in PEM form, or a secret, that signs the certificate. Else ${KEY_VARIABLE}.",
        CERTIFICATE,
        "FILE",
    )
    commit_bytes: Bytes = option(
        "Commit whenever about this many bytes have been rewritten.", BEHAVIOR, "SIZE", default=8 << 30, low=1
    )
    dry_run: bool = option(
        "Count the records and the slices that hold them, and change nothing.", BEHAVIOR, default=False
    )
    single_writer: SingleWriter = False

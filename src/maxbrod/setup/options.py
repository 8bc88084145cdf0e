"""The options of `maxbrod init`, `maxbrod config` and `maxbrod doctor`. They have no section in the file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.option_values import Seconds, Words
from maxbrod.options import Options, option

ANSWERS: Final = "Answers, instead of questions"
VERBS: Final = ("backup", "restore", "query")
"""Verbs whose needs `maxbrod doctor` can try."""
FOREVER: Final = "forever"
"""How long records are kept if nothing is ever pruned."""


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(Options):
    all: bool = option("Show settings that have their default, too.", default=False)


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Options):
    for_: Words = option(
        "Try what these verbs need: backup, restore, query. May be repeated. backup by default.",
        default=(),
        metavar="VERB",
        flags=("--for",),
    )
    topics: Words = option(
        "Topics that will be backed up or restored: names or patterns. All by default.",
        default=(),
        metavar="PATTERN",
        flags=("--topic",),
    )
    start_spark: bool = option("Start Spark and run one task in it, which takes some seconds.", default=False)


@dataclass(frozen=True, kw_only=True)
class InitOptions(Options):
    file: Path = option("The file to write.", default=Path("maxbrod.yaml"), metavar="FILE", argument=True)
    topics: Words = option("Topics to back up: names or patterns.", ANSWERS, "PATTERN", ("--topic",), default=())
    every: Seconds | None = option("How often to look for new records.", ANSWERS, "TIME")
    keep: str | None = option("How long to keep records: 90d, or 'forever'.", ANSWERS, "TIME")
    yes: bool = option("Ask nothing: take the defaults for what is not given.", ANSWERS, default=False)
    force: bool = option("Replace a file that exists.", default=False)

"""Builds the command line of a Java program. Starts nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from maxbrod.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

# Time stamps in the brokers' logs: a fault is read from the order of lines in several files.
LOGGING_OPTIONS: Final = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
# Kafka's tools print their answer to stdout, and their clients' chatter at INFO would bury it.
QUIET_OPTIONS: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)
# The simple compiler only: a third off the start of a program that runs for a second.
QUICK_OPTIONS: Final = ("-XX:TieredStopAtLevel=1",)


def java_command(
    jars: Iterable[Path], main_class: str, *arguments: str, options: Sequence[str] = (*QUIET_OPTIONS, *QUICK_OPTIONS)
) -> list[str]:
    classpath = os.pathsep.join(map(str, jars))
    return [str(find_java().executable), "-XX:-UsePerfData", *options, "-cp", classpath, main_class, *arguments]

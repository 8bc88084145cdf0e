"""Runs Kafka's own command line tools, which are the reference if our result is in doubt."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError
from maxbrod.sandbox.jars import QUICK_OPTIONS, QUIET_OPTIONS, java_command, kafka_release
from maxbrod.sandbox.node import archive_options

if TYPE_CHECKING:
    from collections.abc import Sequence

CONSOLE_CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSUMER_PERFORMANCE: Final = "org.apache.kafka.tools.ConsumerPerformance"
DUMP_LOG_SEGMENTS: Final = "org.apache.kafka.tools.DumpLogSegments"
PRODUCER_PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"

_ERROR_LINES: Final = 10


def run_tool(
    main_class: str,
    *arguments: str,
    stdin: str = "",
    jvm_options: Sequence[str] = QUICK_OPTIONS,
    timeout_s: float = 120,
) -> str:
    """The tool's standard output; if it failed, the MaxbrodError has the end of its output.

    By default the JVM starts fast and runs slowly: a benchmark should give `jvm_options=()`.
    """
    release = kafka_release()
    options = (*QUIET_OPTIONS, *jvm_options, *archive_options(release))
    command = java_command(release.jars, main_class, *arguments, options=options)
    ran = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    if ran.returncode != 0:
        last = "\n".join((ran.stdout + ran.stderr).splitlines()[-_ERROR_LINES:])
        raise MaxbrodError(f"{main_class} failed:\n{last}", operation="run a tool of Kafka")
    return ran.stdout

"""The peers of backups and restores: common programs that read or write the same data."""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from maxbrod.errors import EnvironmentMissingError, MaxbrodError
from maxbrod.sandbox.tools import CONSUMER_PERFORMANCE, PRODUCER_PERFORMANCE, run_tool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maxbrod.bench.loads import Load


def read_with_kcat(bootstrap: str, load: Load) -> None:
    """Read all partitions to their end. The empty format is the cheapest: it prints no record."""
    if shutil.which("kcat") is None:
        raise EnvironmentMissingError("kcat, a peer of this benchmark, is not installed", hint="apt-get install kcat")
    command = ["kcat", "-b", bootstrap, "-C", "-t", load.topic, "-e", "-q", "-o", "beginning", "-f", ""]
    _run(command)


def read_with_consumer_performance(bootstrap: str, load: Load) -> float:
    """The seconds that Kafka's own tool spent fetching, without the start of its JVM and joining its group."""
    printed = run_tool(
        CONSUMER_PERFORMANCE,
        *("--bootstrap-server", bootstrap, "--topic", load.topic, "--num-records", str(load.records)),
        jvm_options=(),
        timeout_s=600,
    )
    names, values = (
        [each.strip() for each in line.split(",")] for line in printed.splitlines() if line.count(",") >= 9
    )
    found = dict(zip(names, values, strict=True))
    if int(found["data.consumed.in.nMsg"]) < load.records:
        raise MaxbrodError("ConsumerPerformance has not read everything", operation="bench", object_name=load.topic)
    return int(found["fetch.time.ms"]) / 1000


def produce_with_producer_performance(
    bootstrap: str, topic: str, records: int, *, payloads: Sequence[str], properties: Sequence[str], processes: int
) -> float:
    """The seconds of the slowest of several processes of Kafka's own tool, each with its share of the records.

    By their own clocks: without the start of the JVM, but with its warm-up.
    """
    share = -(-records // processes)
    arguments = (
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(share), "--throughput", "-1"),
        *(*payloads, "--command-property", *properties),
    )
    with ThreadPoolExecutor(processes) as pool:
        running = [
            pool.submit(run_tool, PRODUCER_PERFORMANCE, *arguments, jvm_options=(), timeout_s=1800)
            for _ in range(processes)
        ]
        return max(_produced_s(each.result(), share) for each in running)


def _produced_s(printed: str, records: int) -> float:
    last = printed.strip().splitlines()[-1]
    found = re.match(r"(\d+) records sent, ([\d.]+) records/sec", last)
    if found is None or int(found[1]) != records:
        raise MaxbrodError(f"ProducerPerformance has not sent everything: {last}", operation="bench")
    return records / float(found[2])


def write_with_cat(sources: Sequence[Path], target: Path, *, synced: bool) -> None:
    """Write the sources into one new file, with `synced` down to the disk."""
    target.unlink(missing_ok=True)
    with target.open("wb") as file:
        subprocess.run(["cat", *map(str, sources)], stdout=file, check=True)
    if synced:
        _run(["sync", str(target)])


def _run(command: Sequence[str]) -> None:
    ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if ran.returncode != 0:
        raise MaxbrodError(f"{command[0]} failed: {ran.stderr.strip()[-300:]}", operation="bench")

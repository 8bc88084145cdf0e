"""The memory of commands that look at a large archive: millions of rows and their snapshots, none of their objects."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.archive import open_archive
from maxbrod.backup.archive_state import read_archive_state
from maxbrod.bench.figures import Figure
from maxbrod.bench.large_archive import write_archive
from maxbrod.bench.planning import PARTITIONS
from maxbrod.bench.processes import peak_bytes, run_python
from maxbrod.cli.main import run
from maxbrod.compare.archived import measure_topics
from maxbrod.restore.archived import look_at_archive
from maxbrod.restore.loss import listed_losses
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.plan.sources import measure_sources

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS: Final = 5_000_000
BYTES_WANTED: Final = 1.5e9
_TOPIC: Final = "topic-00042"
_MERGE_ALL: Final = ("--min-segment-count", "2", "--min-segment-size", "1", "--max-segment-size", "1TB")


def measure(*, rows: int = ROWS, on_stage: Callable[[str], None] = lambda _: None) -> list[Figure]:
    """The peak of each command, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        on_stage(f"writing {rows:,} rows")
        write_archive(folder, partitions=min(PARTITIONS, rows), segments=rows)
        return [_measure(name, folder, on_stage) for name in LOOKS]


def _measure(name: str, url: str, on_stage: Callable[[str], None]) -> Figure:
    on_stage(name)
    program = f"from maxbrod.bench.looking import report; report({name!r}, {url!r})"
    found: dict[str, Any] = json.loads(run_python("-c", program))
    note = f"{found['seconds']:.1f} s, {found['cpu_seconds']:.1f} s of processor time"
    return Figure(name=name, value=found["peak_bytes"], unit="bytes", wanted=BYTES_WANTED, at_most=True, note=note)


def report(name: str, url: str) -> None:
    """Look, and print what that took. What the command itself prints is discarded."""
    began = time.perf_counter()
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        LOOKS[name](url)
    used = time.process_time()
    found = {"seconds": time.perf_counter() - began, "cpu_seconds": used, "peak_bytes": peak_bytes()}
    sys.stdout.write(json.dumps(found))


def _plan(url: str, *topics: str) -> object:
    """What a dry run does with the archive. Lost objects are not added to the sources of everything: all are lost."""
    archive, request = open_archive(url), RestoreRequest(topics=topics)
    found = look_at_archive(archive, request)
    lost = listed_losses(archive, found.chosen.topics.keys(), found.revisions) if topics else {}
    return measure_sources(found.rows.portions(), request, found.chosen, found.ends, as_of=False, lost=lost)


LOOKS: Final[dict[str, Callable[[str], object]]] = {
    "ls": lambda url: run(["ls", "-a", url]),
    "ls --runs": lambda url: run(["ls", "-a", url, "--runs"]),
    "show of one topic": lambda url: run(["show", "-a", url, _TOPIC]),
    "status": lambda url: run(["status", "-a", url]),
    "query, a count": lambda url: run(["query", "-a", url, "SELECT count(*) FROM records"]),
    "hold list": lambda url: run(["hold", "list", "-a", url]),
    "compact --dry-run, everything is merged": lambda url: run(["compact", "-a", url, "--dry-run", *_MERGE_ALL]),
    "prune by runs, dry": lambda url: run(["prune", "-a", url, "--keep-last", "5"]),
    "prune by age, dry": lambda url: run(["prune", "-a", url, "--older-than", "1d"]),
    "prune by size of the archive, dry": lambda url: run(["prune", "-a", url, "--archive-bytes", "10TB"]),
    "prune by size of topics and as the source, dry": lambda url: run(
        ["prune", "-a", url, "--topic-bytes", "10GB", "--as-source"]
    ),
    "repair, dry": lambda url: run(["repair", "-a", url]),
    "check": lambda url: run(["check", "-a", url]),
    "check of one topic": lambda url: run(["check", "-a", url, _TOPIC]),
    "check --json": lambda url: run(["check", "-a", url, "--json"]),
    "gc, dry": lambda url: run(["gc", "-a", url]),
    "planning a restore of one topic": lambda url: _plan(url, _TOPIC),
    "planning a restore of everything": _plan,
    "planning a comparison or drill": lambda url: list(measure_topics(open_archive(url), RestoreRequest())),
    "reading what a backup needs": lambda url: read_archive_state(open_archive(url)),
}

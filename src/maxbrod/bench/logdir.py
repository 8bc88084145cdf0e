"""A backup of a broker's log directory beside processes that only read or copy its files, two at a time."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.archive.foreign_target import TargetRequest
from maxbrod.backup.logdir import logdir_request
from maxbrod.bench.figures import Figure, speed
from maxbrod.bench.race import Lap, race_laps, time_lap
from maxbrod.config import SparkConfig, StorageConfig
from maxbrod.convert.run import Convert
from maxbrod.errors import MaxbrodError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maxbrod.work.session import Session

_READERS: Final = 2
"""The number of cores of this benchmark's machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """The log directory of a stopped broker; only one topic is read."""

    path: Path
    topic: str

    @property
    def logs(self) -> list[str]:
        return sorted(map(str, self.path.glob(f"{self.topic}-*/*.log")))

    @property
    def bytes(self) -> int:
        return sum(Path(log).stat().st_size for log in self.logs)


def race_logdir(session: Session, source: LogDirectory, disk: Path, *, rounds: int) -> list[Figure]:
    """The files are in the page cache for all contenders alike: the first round does not count."""
    logs = source.logs
    contenders: dict[str, Callable[[], object]] = {
        "maxbrod": partial(_back_up, session, source, disk / "archive-logdir"),
        "cache": partial(_read, logs),
        "copying": partial(copy_files, logs, disk),
    }
    # Some file systems, such as those in memory, have no disk to read from.
    if _dd(logs[0]):
        contenders["disk"] = partial(_read_direct, logs)
    laps = race_laps(contenders, rounds=rounds)
    ours, size = laps["maxbrod"], source.bytes
    rates = {name: f"{size / each.best / 1e6:.0f} MB/s" for name, each in laps.items()}
    found = [
        speed("log directory over reading the page cache", ours, laps["cache"], note=rates["cache"]),
        speed("log directory over copying", ours, laps["copying"], note=f"{rates['copying']}, synced"),
    ]
    if "disk" in laps:
        note = f"{rates['maxbrod']}, the disk {rates['disk']}"
        found.insert(0, speed("log directory over the disk", ours, laps["disk"], wanted=0.8, note=note))
    return found


def _back_up(session: Session, source: LogDirectory, target: Path) -> Lap:
    """Into a new archive. What the last round wrote is removed before: that is as much work for the file system."""
    shutil.rmtree(target, ignore_errors=True)
    to = TargetRequest(layout="kafka")
    request = logdir_request(str(source.path), str(target), StorageConfig(), to, topics=(source.topic,))

    def work() -> None:
        with Convert(request, SparkConfig(), session=session) as convert:
            report = convert.run()
        if report.exit_code:
            raise MaxbrodError(
                "the log directory was not backed up whole", operation="bench", object_name=str(source.path)
            )

    return time_lap(work)


def _read_direct(logs: Sequence[str]) -> None:
    """Read from the disk itself, past the page cache."""
    with ThreadPoolExecutor(_READERS) as pool:
        if not all(pool.map(_dd, logs)):
            raise MaxbrodError("dd failed", operation="bench")


def _dd(log: str) -> bool:
    command = ["dd", f"if={log}", "of=/dev/null", "bs=8M", "iflag=direct"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _read(logs: Sequence[str]) -> None:
    _cat(logs, ["/dev/null"] * _READERS)


def copy_files(logs: Sequence[str], folder: Path) -> Lap:
    """Copy files with `cat` into new ones, and sync."""
    targets = [str(folder / f"copy-{number}") for number in range(_READERS)]
    for target in targets:
        Path(target).unlink(missing_ok=True)

    def work() -> None:
        _cat(logs, targets)
        subprocess.run(["sync", *targets], check=True)

    return time_lap(work)


def _cat(logs: Sequence[str], targets: Sequence[str]) -> None:
    """Every file once, from beginning to end."""
    running = []
    for number, target in enumerate(targets):
        with Path(target).open("wb") as out:
            running.append(subprocess.Popen(["cat", *logs[number::_READERS]], stdout=out))
    ended = [each.wait() for each in running]
    if any(ended):
        raise MaxbrodError("cat failed", operation="bench")

"""A broker's log directory backed up, beside two processes that do nothing but read or copy its files."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.api.convert import Convert, ConvertWish
from maxbrod.api.foreign_target import TargetWish
from maxbrod.bench.figures import speed
from maxbrod.bench.race import race_laps
from maxbrod.config import SparkConfig, StorageConfig
from maxbrod.errors import MaxbrodError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.bench.figures import Figure
    from maxbrod.spark.session import Session

_READERS: Final = 2
"""As many as this benchmark's machine has cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """Of a broker that has stopped; only one topic is taken."""

    path: Path
    topic: str

    @property
    def logs(self) -> list[str]:
        return sorted(map(str, self.path.glob(f"{self.topic}-*/*.log")))

    @property
    def bytes(self) -> int:
        return sum(Path(log).stat().st_size for log in self.logs)


def race_logdir(session: Session, source: LogDirectory, disk: Path, *, rounds: int) -> list[Figure]:
    """The files are in the page cache for everybody alike: the first round does not count."""
    laps = race_laps(
        {
            "maxbrod": partial(_back_up, session, source, disk / "archive-logdir"),
            "reading": partial(_read, source.logs),
            "copying": partial(_copy, source.logs, disk),
        },
        rounds=rounds,
    )
    ours, reading = laps["maxbrod"], laps["reading"]
    rates = f"{source.bytes / ours.best / 1e6:.0f} MB/s, two readers {source.bytes / reading.best / 1e6:.0f} MB/s"
    return [
        speed("log directory over reading its files", ours, reading, wanted=0.8, note=rates),
        speed("log directory over copying its files", ours, laps["copying"], note="two at a time, and synced"),
    ]


def _back_up(session: Session, source: LogDirectory, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    wish = ConvertWish(
        source_url=str(source.path),
        source=StorageConfig(),
        target_url=str(target),
        target=StorageConfig(),
        source_layout="logdir",
        topics=(source.topic,),
        to=TargetWish(layout="kafka"),
        # As `backup --from-logdir` does: every batch is checked when it is read.
        verify=False,
    )
    with Convert(wish, SparkConfig(), session=session) as work:
        report = work.run()
    if report.exit_code:
        raise MaxbrodError("the log directory was not backed up whole", operation="bench", object_name=str(source.path))


def _read(logs: Sequence[str]) -> None:
    _cat(logs, ["/dev/null"] * _READERS)


def _copy(logs: Sequence[str], folder: Path) -> None:
    targets = [str(folder / f"copy-{number}") for number in range(_READERS)]
    _cat(logs, targets)
    subprocess.run(["sync", *targets], check=True)


def _cat(logs: Sequence[str], targets: Sequence[str]) -> None:
    """Every file once, from beginning to end."""
    running = []
    for number, target in enumerate(targets):
        with Path(target).open("wb") as out:
            running.append(subprocess.Popen(["cat", *logs[number::_READERS]], stdout=out))
    ended = [each.wait() for each in running]
    if any(ended):
        raise MaxbrodError("cat failed", operation="bench")

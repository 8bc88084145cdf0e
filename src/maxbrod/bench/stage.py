"""What the races of a benchmark share: a cluster, a warm Spark session, a folder, and backups into it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maxbrod.backup.options import BackupOptions
from maxbrod.backup.run import Backup
from maxbrod.bench.figures import Figure
from maxbrod.bench.race import Lap, time_lap
from maxbrod.config import Config, KafkaConfig
from maxbrod.errors import MaxbrodError
from maxbrod.sandbox.cluster import Cluster
from maxbrod.work.session import Session, open_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack


WORKER_BYTES_WANTED: Final = 400e6


def open_sandbox(undo: ExitStack, *, jvm_works: bool = False) -> tuple[Path, Cluster, Session]:
    """A temporary folder, a cluster in it, and a Spark session, until `undo` closes."""
    disk = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="maxbrod-bench-")))
    cluster = undo.enter_context(Cluster.start(disk / "cluster"))
    return disk, cluster, undo.enter_context(open_session(jvm_works=jvm_works))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    cluster: Cluster
    session: Session
    disk: Path
    scale: float
    rounds: int

    def time(self, contender: Callable[[], object]) -> Lap:
        """A lap without the processor time of the brokers, which work for every contender."""
        return time_lap(contender, uncounted=frozenset(self.cluster.pids))

    def config(self, topic: str, archive: Path, **backup: Any) -> Config:  # noqa: ANN401 - fields of `BackupOptions`
        return Config(
            kafka=KafkaConfig(bootstrap=self.cluster.bootstrap),
            archive=str(archive),
            backup=BackupOptions(topics=(topic,), **backup),
        )

    def run_backup(self, config: Config, *, records: int | None = None) -> None:
        """MaxbrodError: the backup is not complete, or has not this number of records."""
        with Backup(config, session=self.session) as backup:
            report = backup.run()
        if not report.complete or report.records != (report.records if records is None else records):
            found = f"{report.records} of {records} records" if records is not None else f"{report.records} records"
            raise MaxbrodError(f"the backup is not complete: it has {found}", operation="bench")


def worker_memory(peak_bytes: int) -> Figure:
    return Figure(
        name="peak memory of a Python worker",
        value=peak_bytes,
        unit="bytes",
        wanted=WORKER_BYTES_WANTED,
        at_most=True,
    )
